#!/bin/sh
# Starts a server, watches over it, and buries it when nobody speaks to us any more.
#
# $1 is the folder, the rest is the server's command line; with KEEP_FOLDER the folder
# stays, whatever happens. Three things are subtle.
# Standard error is the write end of a pipe that only the server keeps open (as its
# standard input), so that its end tells us that the server is gone. A server that was
# waited for is forgotten, because its pid may belong to somebody else by then. And
# the signals are ignored, because the watchdog has to survive whatever ends us, also
# while it speaks to us.

trap '' HUP INT PIPE TERM
PATH=${PATH:+$PATH:}/usr/bin:/bin
folder=$1
shift
mkdir -p -m 700 "$folder" || exit
"$@" <&2 >>"$folder/server.log" 2>&1 &
server=$!
exec 2>/dev/null
echo "$server"
bury() {
    [ -n "$server" ] && kill -9 "$server" && wait "$server"
    server=
}
while read -r word; do
    case $word in
        kill) bury; echo gone ;;
        leave) bury; exit ;;
        stop) break ;;
    esac
done
bury
[ -n "$KEEP_FOLDER" ] || rm -rf "$folder"
