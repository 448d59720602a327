#!/bin/sh
# Plays one run of a sweep: the line of RUNS.TXT with this pod's number is the name of its folder in KEPT, and its settings.
# The run lives on the pod's own disk and is brought back whole, also when the pod is asked to end. The next pod of the
# number goes on with it.
# play.sh RUNS.TXT KEPT EXPERIMENT.TOML
line=$(sed -n "$((JOB_COMPLETION_INDEX + 1))p" "$1") kept=$2
name=${line%% *} own=${TMPDIR:-/tmp}/run
[ -n "$name" ] || { echo "$1: has no line for number $JOB_COMPLETION_INDEX" >&2; exit 2; }
new=$kept/.$name.new old=$kept/.$name.old
# The last pod may have been killed while it brought the run back.
[ -e "$kept/$name" ] || [ ! -e "$old" ] || mv "$new" "$kept/$name" || exit
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
    rm -rf "$new" "$old" && cp -r "$own" "$new" || exit
    [ ! -e "$kept/$name" ] || mv "$kept/$name" "$old" || exit
    mv "$new" "$kept/$name" && rm -rf "$old" || exit
fi
exit $status
