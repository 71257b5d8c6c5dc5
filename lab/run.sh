#!/bin/bash
# Starts SLURM with fake GPUs, Wattline in control of it, and jobs that really run, until Ctrl-C.
#
#   sudo NODES=4 GPUS=4 JOBS=12 lab/run.sh
#
# LAB NODES GPUS  as for up.sh
# JOBS            how many jobs are submitted, one every few seconds
# BUDGET          watts
# WATTLINE        the program (target/release/wattline)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export LAB=${LAB:-/tmp/wattline-lab} NODES=${NODES:-4} GPUS=${GPUS:-4}
JOBS=${JOBS:-12} BUDGET=${BUDGET:-$((NODES * (300 + GPUS * 250)))}
wattline=${WATTLINE:-$here/../target/release/wattline}
[ -x "$wattline" ] || { echo "lab: $wattline is not there; \`make build\` makes it" >&2; exit 1; }

power=
finish() {
  trap - EXIT INT TERM
  [ -z "$power" ] || kill "$power" 2>/dev/null || true
  WIPE=1 "$here/down.sh" >/dev/null 2>&1 || true
  echo "lab: down"
}
trap finish EXIT
trap 'exit 0' INT TERM

GATE=1 SUSPENDTIMEOUT=${SUSPENDTIMEOUT:-3} "$here/up.sh"
. "$LAB/env"
cp "$here/train.pl" "$here/train.sh" "$LAB/bin/"
chmod 755 "$LAB/bin/train.pl" "$LAB/bin/train.sh"
mkdir -p "$LAB/pm"
perl "$here/power.pl" "$LAB" --gpus "$GPUS" --base 300 --idle 50 --busy 350 --limit 400 --boot 550 --sleep 10 &
power=$!
cat >"$LAB/site.toml" <<SITE
name = "lab"
[[gpu]]
name = "lab"
idle = "50 W"
busy = "350 W"
min_limit = "200 W"
default_limit = "400 W"
max_limit = "400 W"
limit_step = "50 W"
[[nodes]]
names = "n[1-$NODES]"
gpu = "lab"
gpus = $GPUS
base = "300 W"
sleep = "10 W"
boot = "550 W"
boot_time = "4 s"
shutdown_time = "10 s"
limits = "pm"
[budget]
power = "$BUDGET W"
[engine]
debounce = "0.3 s"
budget_lead = "5 s"
[slurm]
mode = "control"
partitions = ["gpu"]
slurm_conf = "$SLURM_CONF"
progress = "$LAB/progress"
heartbeat = "$LAB/run/heartbeat"
measure_every = "5 s"
SITE
(
  cd "$LAB/jobs"
  for ((i = 0; i < JOBS; i++)); do
    sleep 3
    runuser -u "$([ $((i % 2)) = 0 ] && echo alice || echo bob)" -- env SLURM_CONF="$SLURM_CONF" \
      LAB_PROGRESS="$LAB_PROGRESS" TRAIN="$LAB/bin/train.pl" sbatch --job-name="train$i" "$LAB/bin/train.sh" >/dev/null || true
  done
) &
cat <<TRY

In another terminal:

  export SLURM_CONF=$SLURM_CONF WATTLINE_SOCKET=$LAB/socket
  squeue; sinfo -N
  $wattline queue; $wattline nodes

TRY
"$wattline" serve --site "$LAB/site.toml" --journal "$LAB/journal" --socket "$LAB/socket"
