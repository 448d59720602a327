#!/bin/sh
# A certificate authority for this machine alone, and certificates for the server, the evaluator and the clients.
#   deploy/make-certificates.sh FOLDER [NAME...]    NAMEs: further host names of the server and of the evaluator
# The folder is its owner's alone; in it the keys can be read by all, for containers run as a user of their own.
set -eu
folder=$1
shift
umask 022
mkdir -p "$folder"
chmod 700 "$folder"
CDPATH= cd "$folder"

new_key() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
}

# certify NAME PURPOSE HOST...
certify() {
    name=$1 purpose=$2
    shift 2
    hosts=$(printf 'DNS:%s,' "$@")
    printf 'subjectAltName=%s\nextendedKeyUsage=%s\n' "${hosts%,}" "$purpose" > "$name.extensions"
    new_key "$name"
    chmod 644 "$name.key"
    openssl req -new -key "$name.key" -subj "/CN=pausefl $name" -out "$name.request"
    openssl x509 -req -in "$name.request" -days 825 -sha256 -CA ca.pem -CAkey ca.key -CAcreateserial \
        -extfile "$name.extensions" -out "$name.pem"
    rm "$name.request" "$name.extensions"
}

new_key ca
openssl req -x509 -new -key ca.key -days 3650 -sha256 -subj "/CN=pausefl" -out ca.pem
# The server is also a client: of the evaluator.
certify server serverAuth,clientAuth server localhost "$@"
certify evaluator serverAuth evaluator localhost "$@"
# The clients share a certificate, which lets its holders be any client; pausefl certs makes one for each.
certify client clientAuth '*'
