#!/bin/bash
# Checks the lab, the gate, the training stand-in and the gate's fallback on a real SLURM, in under a
# minute. Without root it says so and passes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "$(id -u)" != 0 ]; then
  echo "lab check: skipped, it needs root"
  # What make test shows in the end.
  [ -z "${WATTLINE_SKIPPED:-}" ] || echo "lab/check.sh: it needs root" >>"$WATTLINE_SKIPPED"
  exit 0
fi

LAB=$(mktemp -d /tmp/wattline-check.XXXXXX)
export LAB
finish() {
  code=$?
  [ $code = 0 ] || { tail -n 5 "$LAB"/log/slurmctld.log "$LAB"/jobs/*.out >&2 || true; squeue -a >&2 || true; }
  WIPE=1 "$here/down.sh" >/dev/null 2>&1 || true
  rm -rf "$LAB"
  exit $code
}

trap finish EXIT
for try in 1 2 3; do
  base=$((20000 + (RANDOM % 200) * 100))
  if GATE=1 ENERGY=1 NODES=3 GPUS=4 SUSPENDTIMEOUT=3 KILLWAIT=3 PATIENCE_S=60 \
    CTLPORT=$base NODEPORT=$((base + 10)) "$here/up.sh"; then break; fi
  [ $try != 3 ]
done
. "$LAB/env"
cp "$here/train.pl" "$LAB/bin/train.pl"; chmod 755 "$LAB/bin/train.pl"
cd "$LAB/jobs"

# Helpers ------------------------------------------------------------------------------------------

as() { local user=$1; shift; runuser -u "$user" -- env PATH="$PATH" SLURM_CONF="$SLURM_CONF" LAB="$LAB" LAB_PROGRESS="$LAB_PROGRESS" "$@"; }
submit() { local user=$1; shift; as "$user" sbatch --parsable "$@"; }
show() { squeue --noheader --jobs="$1" --states=all --Format="$2:1100" | sed 's/ *$//'; }
beat() { date +%s >"$LAB/run/heartbeat"; }
die() { echo "lab check: $*" >&2; exit 1; }
same() { [ "$2" = "$3" ] || die "$1: expected '$3', got '$2'"; }
refused() { if "$@" >/dev/null 2>&1; then die "was not refused: $*"; fi; }
# until_is SECONDS EXPECTED COMMAND...
until_is() {
  local limit=$1 expected=$2 got=; shift 2
  for _ in $(seq $((limit * 10))); do
    got=$("$@" 2>/dev/null || true)
    [ "$got" != "$expected" ] || return 0
    sleep .1
  done
  die "waited $limit s for '$expected' from: $*; last '$got'"
}
reshape() { # JOB GPUS NODE
  scontrol update "JobId=$1" NumNodes=1-1 NumTasks=1 NumCPUs=1 "Gres=gpu:$2" "ReqNodeList=$3" StartTime=now
  scontrol release "$1"
}
value() { sed -n "s/.* $2=\([^ ]*\).*/\1/p" <<<"$1"; }
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }'; }
ok() { echo "lab check: ok: $*"; }

cat >train.sh <<'JOB'
#!/bin/bash
#SBATCH --gres=gpu:2 --output=%j.out

#WATTLINE deadline=6h weight=2.5 gpus=1-4:2  # soon
#WATTLINE workload=demo work=200 checkpoint=usr1
exec perl "$LAB/bin/train.pl" --work 200 --rate 20 --checkpoint "$SLURM_JOB_ID.state" --save 0.3 --load 0.2 --every 0.2
#WATTLINE weight=9999
JOB
asked="wattline/1 deadline=6h weight=2.5 gpus=1-4:2 workload=demo work=200 checkpoint=usr1"

# The gate -----------------------------------------------------------------------------------------

scontrol update NodeName=n3 State=POWER_DOWN
job=$(submit alice --comment='weight=3' train.sh)
same "admin comment" "$(show "$job" admin_comment)" "$asked ; weight=3"
own=$(submit alice --hold train.sh)
same "admin comment of a held job" "$(show "$own" admin_comment)" "wattline/1 hold=user${asked#wattline/1}"
evil=$(submit bob --comment='$(touch '"$LAB"'/jobs/ran) `id` "x" <b>=1' --wrap=true)
same "nasty comment" "$(show "$evil" admin_comment)" 'wattline/1 ; $(touch '"$LAB"'/jobs/ran) `id` "x" <b>=1'
{ echo '#!/bin/sh'; for i in $(seq 20); do printf '#WATTLINE workload=%0100d\n' "$i"; done; echo true; } >long.sh
long=$(submit bob long.sh)
kept=$(show "$long" admin_comment)
case $kept in *" cut=1") ;; *) die "a long request is not marked as cut: '$kept'" ;; esac
[ ${#kept} -le 1024 ] || die "the admin comment has ${#kept} bytes"
open=$(submit bob --partition=open --gres=gpu:1 --output=/dev/null --wrap='sleep 2')
until_is 10 RUNNING show "$open" state
same "admin comment in an open partition" "$(show "$open" admin_comment)" "(null)"
for user in alice bob; do
  for change in "update JobId=$job Priority=1000" "update JobId=$job Nice=0" \
    "update JobId=$job Nice=-5" "update JobId=$job Nice=5" "update JobId=$job AdminComment=wattline/1" \
    "update JobId=$job Partition=open"; do
    refused as $user scontrol $change
  done
done
refused as bob scontrol release "$job"
# What an owner holds and releases is his begin time: the gate's hold stays.
as alice scontrol release "$job"
same "a job whose owner released it" "$(squeue -h -j "$job" -o '%T %Q')" "PENDING 0"
refused as bob scontrol update "JobId=$open" Partition=gpu
refused as bob scancel "$job"
as alice scontrol update "JobId=$job" Comment=hello
sleep 1
same "state of a gated job" "$(show "$job" state) $(show "$job" prioritylong)" "PENDING 0"
same "admin comment after all that" "$(show "$job" admin_comment)" "$asked ; weight=3"
[ ! -e ran ] || die "a comment was run by a shell"
ok "jobs are held, what users ask is kept, and they can neither release nor reorder"

# Running, saving, resizing ------------------------------------------------------------------------

term=$(submit bob train.sh)
reshape "$job" 1 n1
reshape "$term" 2 n2
until_is 10 "RUNNING n1" squeue --noheader --jobs="$job" --format='%T %N'
echo 777 >"$LAB/pm/n1/watts"
until_is 10 1 grep -c '^done=[1-9]' -m1 "$LAB_PROGRESS/$job"
until_is 10 1 grep -c '^done=[1-9]' -m1 "$LAB_PROGRESS/$term"
scancel --signal=USR1 --batch "$job"
scontrol requeuehold "$term"
until_is 15 "SPECIAL_EXIT 0" squeue --noheader --jobs="$job" --format='%T %Q'
saved=$(value " $(cat "$job.state")" done)
at_least "$saved" 1 || die "nothing was saved"
stop=$(grep ' stop ' "$job.out")
same "why it stopped" "$(value "$stop" why) $(value "$stop" done)" "usr1 $saved"
refused as alice scontrol update "JobId=$job" Nice=0
until_is 15 "PENDING 0" squeue --noheader --jobs="$term" --format='%T %Q'
same "why the other stopped" "$(value "$(grep ' stop ' "$term.out")" why)" "term"
reshape "$job" 4 n2
until_is 15 COMPLETED show "$job" state
start=$(grep ' start ' "$job.out" | tail -1)
same "second start" "$(value "$start" restart) $(value "$start" nodes) $(value "$start" gpus) $(value "$start" from)" "1 n2 4 $saved"
same "first start" "$(grep ' start ' "$job.out" | head -1 | grep -c 'restart=0 nodes=n1 gpus=1 from=0.000000')" 1
same "work in the end" "$(cat "$job.state")" "done=200.000000"
ok "a job saves on USR1, exits with 86, is held, and goes on with other GPUs from $saved of 200"

# Power and sleep ----------------------------------------------------------------------------------

current() { scontrol show node n1 | sed -n 's/.*CurrentWatts=\([0-9]*\).*/\1/p'; }
until_is 15 777 current
until_is 20 'idle~' sinfo --noheader --nodes=n3 --partition=gpu --format=%t
same "power asleep" "$(cat "$LAB/pm/n3/watts")" 10
scontrol update NodeName=n3 State=POWER_UP
ok "SLURM sees the power of a node, and a node falls asleep"

# The controller is gone ---------------------------------------------------------------------------

fallback=$here/../packaging/wattline-gate-fallback
beat
"$fallback" "$LAB/run/heartbeat" 2
same "held with a fresh heartbeat" "$(show "$term" prioritylong)" 0
echo $(($(date +%s) - 600)) >"$LAB/run/heartbeat"
through=$(submit alice --gres=gpu:1 --output=/dev/null --comment='gpus=1' --wrap=true)
until_is 15 COMPLETED show "$through" state
same "mark of a job that passed" "$(show "$through" admin_comment)" "wattline/1 ; gpus=1"
admin=$(date +%s >"$LAB/run/heartbeat"; submit bob --output=/dev/null --wrap=true)
scontrol hold "$admin"
at=$(date -d '+1 hour' +%Y-%m-%dT%H:%M:%S)
later=$(submit bob --begin="$at" --output=/dev/null --wrap=true)
# As the controller parks a job that waits for another and has a begin of its own: 400 years on.
parked=$(submit bob --begin="$at" --dependency="afterok:$later" --output=/dev/null --wrap=true)
scontrol update "JobId=$parked" "StartTime=$((${at%%-*} + 400))-${at#*-}"
scontrol release "$parked"
echo $(($(date +%s) - 600)) >"$LAB/run/heartbeat"
"$fallback" "$LAB/run/heartbeat" 2
until_is 15 COMPLETED show "$term" state
same "restarts" "$(value "$(grep ' start ' "$term.out" | tail -1)" restart)" 1
same "held by its user" "$(show "$own" state) $(show "$own" prioritylong)" "PENDING 0"
same "held by an administrator" "$(show "$admin" state) $(show "$admin" prioritylong)" "PENDING 0"
for each in "$later" "$parked"; do
  same "begin of a job that was let go" "$(show "$each" eligibletime)" "$at"
  [ "$(show "$each" prioritylong)" != 0 ] || die "a job with a begin of its own is still held"
done
echo broken >"$LAB/run/heartbeat"
through=$(submit alice --gres=gpu:1 --output=/dev/null --wrap=true)
until_is 15 COMPLETED show "$through" state
until_is 15 idle sinfo --noheader --nodes=n3 --partition=gpu --format=%t
same "power awake" "$(cat "$LAB/pm/n3/watts")" 300
ok "without a heartbeat new jobs pass, and the fallback releases those that the gate holds"
