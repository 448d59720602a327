#!/bin/sh
# Plays one run of a sweep: the line of RUNS.TXT with this pod's number is the name of its folder in KEPT, and its settings.
# The run lives on the pod's own disk and is brought back whole, also when the pod is asked to end. The next pod of the
# number goes on with it.
# play.sh RUNS.TXT KEPT EXPERIMENT.TOML
line=$(sed -n "$((JOB_COMPLETION_INDEX + 1))p" "$1") kept=$2
name=${line%% *} own=${TMPDIR:-/tmp}/run
[ -n "$name" ] || { echo "$1: has no line for number $JOB_COMPLETION_INDEX" >&2; exit 2; }
if [ -e "$kept/$name/run.db" ]; then
    cp -r "$kept/$name" "$own" || exit
    set -- --resume "$own"
else
    # shellcheck disable=SC2086 # the settings are words
    set -- "$3" --virtual ${line#"$name"} --run-dir "$own"
fi
trap 'kill -TERM $!' TERM INT
pausefl run "$@" &
wait $!
status=$?
while kill -0 $! 2>/dev/null; do # a signal ends a wait
    wait $!
    status=$?
done
if [ -e "$own/run.db" ]; then
    rm -rf "$kept/.$name" && cp -r "$own" "$kept/.$name" && rm -rf "${kept:?}/$name" && mv "$kept/.$name" "$kept/$name" || exit
fi
exit $status
