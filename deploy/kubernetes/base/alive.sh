#!/bin/bash
# Whether a pod is alive: its part is over, or the process that serves at the port given says that it is healthy.
[ -e "${TMPDIR:-/tmp}/over" ] && exit
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit
printf 'GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
timeout 5 grep -q '^ok$' <&3
