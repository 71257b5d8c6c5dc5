#!/bin/bash
# Stops the lab in $LAB, by the process ids it recorded. WIPE=1 deletes its folder too.
LAB=${LAB:-/tmp/wattline-lab}
export SLURM_CONF=$LAB/etc/slurm.conf
[ -e "$SLURM_CONF" ] || exit 0

gone() { [ ! -e "/proc/$1" ] || grep -qs '^State:.Z' "/proc/$1/status"; }
stop() { # pid file, name of the program
  local pid; pid=$(cat "$1" 2>/dev/null) || return 0
  rm -f "$1"
  [ -n "$pid" ] && grep -qs "$2" "/proc/$pid/comm" || return 0
  kill "$pid" 2>/dev/null
  # A program that was stopped (SIGSTOP) must run to end.
  kill -CONT "$pid" 2>/dev/null
  for _ in $(seq 50); do gone "$pid" && return 0; sleep .1; done
  kill -9 "$pid" 2>/dev/null
}

stop "$LAB/run/slurmrestd.pid" slurmrestd
stop "$LAB/run/slurmctld.pid" slurmctld
for file in "$LAB"/run/slurmd.*.pid; do [ -e "$file" ] && stop "$file" slurmd; done
# What is left of jobs: slurmstepd and their processes carry this lab's SLURM_CONF.
for process in /proc/[0-9]*; do
  pid=${process#/proc/}
  [ "$pid" != $$ ] || continue
  variables=$({ tr '\0' '\n' <"$process/environ"; } 2>/dev/null) || continue
  grep -qx "SLURM_CONF=$SLURM_CONF" <<<"$variables" || continue
  if grep -qs '^slurmstepd$' "$process/comm" || grep -q '^SLURM_JOB_ID=' <<<"$variables"; then
    kill -9 "$pid" 2>/dev/null
  fi
done
stop "$LAB/run/slurmdbd.pid" slurmdbd
stop "$LAB/run/mysql/pid" 'mariadbd\|mysqld'
stop "$LAB/run/meter.pid" 'perl\|meter'
stop "$LAB/run/munged.pid" munged
if [ "${WIPE:-0}" = 1 ]; then rm -rf "$LAB"; fi
echo "lab: down"
