#!/bin/bash
# Starts a real SLURM cluster with fake GPUs on this one machine. Needs root, no systemd, no cgroups.
#
#   LAB=/tmp/wattline-lab NODES=4 GPUS=4 lab/up.sh      then:  . /tmp/wattline-lab/env; sinfo
#
# LAB            its folder; several labs run at once with own folders and ports
# NODES GPUS CPUS MEM GPUTYPE   how many nodes, and what each has
# GATE=1         Wattline's gate holds every job of the partition "gpu" (not of "open")
# PATIENCE_S     seconds without a heartbeat in $LAB/run/heartbeat after which the gate lets jobs pass
# ENERGY=1       SLURM reads each node's power from $LAB/pm/NODE/watts
# IDLE_W BOOT_W SLEEP_W   what is written there at the start, when a node boots and when it sleeps
# DB=1           with mariadb and slurmdbd, for sacct
# REST=1         with slurmrestd on $LAB/run/rest/socket and RESTPORT; root's token is in $LAB/run/token
# MAXJOBS        how many jobs SLURM remembers, tasks of arrays and those that ended lately included
# BOOT_S SUSPENDTIMEOUT RESUMETIMEOUT SLURMDTIMEOUT KILLWAIT   seconds
# EXTRA_CONF     further lines for slurm.conf
# CTLPORT NODEPORT DBDPORT RESTPORT   NODEPORT is the port before the first node's
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LAB=${LAB:-/tmp/wattline-lab}
NODES=${NODES:-4} GPUS=${GPUS:-4} CPUS=${CPUS:-64} MEM=${MEM:-500000} GPUTYPE=${GPUTYPE:-h100}
DB=${DB:-0} REST=${REST:-0} ENERGY=${ENERGY:-0} GATE=${GATE:-0} PATIENCE_S=${PATIENCE_S:-300}
MAXJOBS=${MAXJOBS:-10000}
CTLPORT=${CTLPORT:-16817} DBDPORT=${DBDPORT:-16819} RESTPORT=${RESTPORT:-16820} NODEPORT=${NODEPORT:-17000}
BOOT_S=${BOOT_S:-1} SUSPENDTIMEOUT=${SUSPENDTIMEOUT:-5} RESUMETIMEOUT=${RESUMETIMEOUT:-30}
SLURMDTIMEOUT=${SLURMDTIMEOUT:-15} KILLWAIT=${KILLWAIT:-5}
IDLE_W=${IDLE_W:-300} BOOT_W=${BOOT_W:-$IDLE_W} SLEEP_W=${SLEEP_W:-10}
gate_file=${GATE_FILE:-$here/../crates/wattline-controller/src/slurm/gate.lua}
host=$(hostname -s)

fail() { echo "lab: $*" >&2; exit 1; }
case $LAB in /*) ;; *) fail "LAB must be an absolute path, it is '$LAB'" ;; esac
case $LAB in *[!A-Za-z0-9/._-]*) fail "LAB may have letters, digits and / . _ - only" ;; esac
[ "$(id -u)" = 0 ] || fail "needs root: slurmd starts processes as their users"
if [ -e "$LAB/run/slurmctld.pid" ] && kill -0 "$(cat "$LAB/run/slurmctld.pid")" 2>/dev/null; then
  fail "already up in $LAB; lab/down.sh stops it"
fi

# Another lab may have these ports.
for port in "$CTLPORT" $(seq $((NODEPORT + 1)) $((NODEPORT + NODES))) $([ "$DB" = 0 ] || echo "$DBDPORT") \
  $([ "$REST" = 0 ] || echo "$RESTPORT"); do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    fail "port $port is in use; choose others with CTLPORT, NODEPORT, DBDPORT and RESTPORT"
  fi
done

# Packages and users -------------------------------------------------------------------------------

missing=
for command in munged slurmctld slurmd squeue perl useradd runuser; do
  command -v $command >/dev/null || missing=1
done
[ "$DB" = 0 ] || { command -v slurmdbd && command -v mariadbd; } >/dev/null || missing=1
[ "$REST" = 0 ] || command -v slurmrestd >/dev/null || missing=1
if [ -n "$missing" ]; then
  command -v apt-get >/dev/null || fail "SLURM is not installed, and there is no apt-get to install it"
  echo "lab: installing SLURM"
  packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge perl passwd util-linux"
  [ "$DB" = 0 ] || packages="$packages slurmdbd slurm-wlm-mysql-plugin mariadb-server"
  [ "$REST" = 0 ] || packages="$packages slurmrestd slurm-wlm-jwt-plugin"
  # Keeps the packages from starting daemons of their own.
  policy=/usr/sbin/policy-rc.d
  if [ -e $policy ]; then policy=; else printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy; fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
  [ -z "$policy" ] || rm -f $policy
fi
for user in alice bob; do id $user >/dev/null 2>&1 || useradd --create-home $user; done

# Folders, keys, devices ---------------------------------------------------------------------------

mkdir -p "$LAB"/{etc,state,spool,log,run,bin,dev,events,jobs,progress}
chmod 755 "$LAB" "$LAB"/{run,etc,bin}
chmod 1777 "$LAB"/{jobs,progress}
: >"$LAB/events/log"
# SLURM wants device files for GPUs: copies of /dev/null will do.
for ((i = 0; i < GPUS; i++)); do
  [ -e "$LAB/dev/gpu$i" ] || mknod -m 666 "$LAB/dev/gpu$i" c 1 3 2>/dev/null || : >"$LAB/dev/gpu$i"
done
[ -e "$LAB/etc/munge.key" ] || (umask 077 && head -c 128 /dev/urandom >"$LAB/etc/munge.key")
[ -e "$LAB/etc/jwt.key" ] || (umask 077 && head -c 32 /dev/urandom >"$LAB/etc/jwt.key")

# slurm.conf ---------------------------------------------------------------------------------------

gather=none accounting="AccountingStorageType=accounting_storage/none"
[ "$DB" = 0 ] || gather=linux accounting="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=$DBDPORT
AccountingStoragePass=$LAB/run/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment,job_env,job_script"
energy=
[ "$ENERGY" = 0 ] || gather=linux energy="AcctGatherEnergyType=acct_gather_energy/pm_counters
AcctGatherNodeFreq=2"
[ $gather = none ] || gather="linux
JobAcctGatherFrequency=task=10,energy=2"
# Without slurmdbd it ends at once if it is to serve its part of the API.
tokens= openapi=openapi/v0.0.38
[ "$DB" = 0 ] || openapi="$openapi,openapi/dbv0.0.38"
[ "$REST" = 0 ] || tokens="AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=$LAB/etc/jwt.key"
gate=
[ "$GATE" = 0 ] || gate="JobSubmitPlugins=lua"

cat >"$LAB/etc/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$CTLPORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$LAB/run/munge.socket
CredType=cred/munge
$tokens
SlurmctldPidFile=$LAB/run/slurmctld.pid
SlurmdPidFile=$LAB/run/slurmd.%n.pid
SlurmdSpoolDir=$LAB/spool/%n
StateSaveLocation=$LAB/state
SlurmctldLogFile=$LAB/log/slurmctld.log
SlurmdLogFile=$LAB/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
DebugFlags=Power
# Works in any container.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
# Scheduling.
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5,batch_sched_delay=0,sched_min_interval=100000,bf_continue,bf_resolution=10,nohold_on_prolog_fail
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PriorityType=priority/basic
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
JobRequeue=1
JobFileAppend=1
# A job that saved and stopped because it was asked to exits with 86 and is held.
RequeueExitHold=86
KillWait=$KILLWAIT
MinJobAge=300
MaxJobCount=$MAXJOBS
MessageTimeout=10
SlurmdTimeout=$SLURMDTIMEOUT
SlurmctldTimeout=10
InactiveLimit=0
BatchStartTimeout=10
ReturnToService=2
DefMemPerCPU=100
$gate
# Each appends a line to $LAB/events/log.
PrologSlurmctld=$LAB/bin/hook
EpilogSlurmctld=$LAB/bin/hook
Epilog=$LAB/bin/hook
$accounting
JobAcctGatherType=jobacct_gather/$gather
$energy
# Sleep: a node that sleeps has no slurmd. A finite SuspendTime, or POWER_DOWN is refused.
SuspendProgram=$LAB/bin/suspend
ResumeProgram=$LAB/bin/resume
SuspendTime=31536000
SuspendTimeout=$SUSPENDTIMEOUT
ResumeTimeout=$RESUMETIMEOUT
SuspendRate=0
ResumeRate=0
GresTypes=gpu
SlurmdParameters=config_overrides
${EXTRA_CONF:-}
CONF
for ((i = 1; i <= NODES; i++)); do
  echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((NODEPORT + i)) CPUs=$CPUS RealMemory=$MEM Gres=gpu:$GPUTYPE:$GPUS"
done >>"$LAB/etc/slurm.conf"
cat >>"$LAB/etc/slurm.conf" <<CONF
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=open Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
echo "Name=gpu Type=$GPUTYPE File=$LAB/dev/gpu[0-$((GPUS - 1))]" >"$LAB/etc/gres.conf"
: >"$LAB/etc/cgroup.conf"
if [ "$GATE" != 0 ]; then
  sed -e 's|^local CONTROLLED = .*|local CONTROLLED = { "gpu" }|' \
    -e "s|^local HEARTBEAT = .*|local HEARTBEAT = \"$LAB/run/heartbeat\"|" \
    -e "s|^local PATIENCE_S = .*|local PATIENCE_S = $PATIENCE_S|" "$gate_file" >"$LAB/etc/job_submit.lua"
  date +%s >"$LAB/run/heartbeat"
fi

# Programs that SLURM and people call --------------------------------------------------------------

cat >"$LAB/bin/hook" <<HOOK
#!/bin/sh
echo "\$(date +%s.%3N) \${SLURM_SCRIPT_CONTEXT:-?} job=\${SLURM_JOB_ID:-?} node=\${SLURMD_NODENAME:-}" >>$LAB/events/log
exit 0
HOOK
cat >"$LAB/bin/node" <<NODE
#!/bin/bash
# node start|stop|kill NAME...: the slurmd of a fake node.
export SLURM_CONF=$LAB/etc/slurm.conf
action=\$1; shift
for n in "\$@"; do
  pid=\$(cat $LAB/run/slurmd.\$n.pid 2>/dev/null || true)
  grep -qs slurmd /proc/\${pid:-none}/comm || pid=
  case \$action in
    start)
      # One that is still ending would keep the new one from starting, and SLURM waits in vain.
      for _ in \$(seq 50); do [ -n "\$pid" ] && [ -e $LAB/run/ending.\$n ] && [ -e /proc/\$pid ] || break; sleep .1; done
      if [ -n "\$pid" ] && [ -e $LAB/run/ending.\$n ]; then kill -9 \$pid 2>/dev/null || true; pid=; fi
      rm -f $LAB/run/ending.\$n
      [ -z "\$pid" ] || continue
      mkdir -p $LAB/spool/\$n
      # The node's own view of /sys, with its power where SLURM's plugin looks for it.
      own=; [ ! -d $LAB/pm/\$n ] || own="unshare -m --propagation private $LAB/bin/with_power \$n"
      # What slurmctld starts has SIGTERM blocked; a node must not.
      perl -MPOSIX -e 'sigprocmask(SIG_SETMASK, POSIX::SigSet->new) or die; exec @ARGV or die' \
        \$own /usr/sbin/slurmd -N \$n \${SLURMD_EXTRA:-} </dev/null >/dev/null 2>&1 ;;
    stop) [ -z "\$pid" ] || { : >$LAB/run/ending.\$n; kill \$pid 2>/dev/null; } || true ;;
    kill) [ -z "\$pid" ] || kill -9 \$pid 2>/dev/null || true; rm -f $LAB/run/slurmd.\$n.pid ;;
    *) echo "node start|stop|kill NAME..." >&2; exit 2 ;;
  esac
done
NODE
cat >"$LAB/bin/with_power" <<WITH
#!/bin/bash
# with_power NODE command...: in a private mount namespace, $LAB/pm/NODE is /sys/cray/pm_counters.
set -e
n=\$1; shift
mkdir -p $LAB/run/sys
mount --rbind /sys $LAB/run/sys
mount -t tmpfs tmpfs /sys
for d in $LAB/run/sys/*; do b=/sys/\${d##*/}; mkdir \$b; mount --rbind \$d \$b; done
mkdir -p /sys/cray/pm_counters
mount --bind $LAB/pm/\$n /sys/cray/pm_counters
exec "\$@"
WITH
cat >"$LAB/bin/meter" <<'METER'
#!/usr/bin/perl
# Twice a second, adds up each node's watts into the counters that SLURM's plugin reads.
use strict; use warnings; use Time::HiRes qw(time sleep);
my $dir = shift; my (%joules, $last); $last = time;
while (1) {
  sleep 0.5; my $now = time; my $seconds = $now - $last; $last = $now;
  for my $node (glob "$dir/*") {
    my $watts = 0;
    if (open my $in, '<', "$node/watts") { my $line = <$in>; $watts = 0 + $1 if defined $line && $line =~ /^(\d+(?:\.\d+)?)/; close $in }
    # Never 0: slurmd takes 0 at its start for "no counter".
    $joules{$node} //= 1e6; $joules{$node} += $watts * $seconds;
    for (["power", $watts, "W"], ["energy", $joules{$node}, "J"]) {
      open my $out, '+<', "$node/$_->[0]" or next;
      printf $out "%d %s %d us\n", $_->[1], $_->[2], $now * 1e6; truncate $out, tell $out; close $out;
    }
  }
}
METER
cat >"$LAB/bin/suspend" <<SUSPEND
#!/bin/bash
export SLURM_CONF=$LAB/etc/slurm.conf
nodes=\$(scontrol show hostnames "\$1")
echo "\$(date +%s.%3N) suspend \$1" >>$LAB/events/log
$LAB/bin/node stop \$nodes
for n in \$nodes; do [ ! -d $LAB/pm/\$n ] || echo $SLEEP_W >$LAB/pm/\$n/watts; done
SUSPEND
cat >"$LAB/bin/resume" <<RESUME
#!/bin/bash
export SLURM_CONF=$LAB/etc/slurm.conf
nodes=\$(scontrol show hostnames "\$1")
echo "\$(date +%s.%3N) resume \$1" >>$LAB/events/log
for n in \$nodes; do [ ! -d $LAB/pm/\$n ] || echo $BOOT_W >$LAB/pm/\$n/watts; done
sleep $BOOT_S
SLURMD_EXTRA=-b $LAB/bin/node start \$nodes
for n in \$nodes; do [ ! -d $LAB/pm/\$n ] || echo $IDLE_W >$LAB/pm/\$n/watts; done
RESUME
cat >"$LAB/bin/rest" <<RESTD
#!/bin/bash
# rest start|stop: slurmrestd. Never as root or SlurmUser: it refuses.
export SLURM_CONF=$LAB/etc/slurm.conf
pid=\$(cat $LAB/run/slurmrestd.pid 2>/dev/null || true)
grep -qs slurmrestd /proc/\${pid:-none}/comm || pid=
case \$1 in
  start)
    [ -z "\$pid" ] || exit 0
    mkdir -p $LAB/run/rest; chown nobody $LAB/run/rest; rm -f $LAB/run/rest/socket
    # With tokens alone: whoever may open its socket is nobody without one.
    SLURM_JWT=daemon setsid setpriv --reuid=nobody --regid=nogroup --clear-groups \
      slurmrestd -s $openapi -a rest_auth/jwt unix:$LAB/run/rest/socket 127.0.0.1:$RESTPORT \
      </dev/null >>$LAB/log/slurmrestd.log 2>&1 &
    echo \$! >$LAB/run/slurmrestd.pid ;;
  stop) [ -z "\$pid" ] || kill \$pid; rm -f $LAB/run/slurmrestd.pid ;;
  *) echo "rest start|stop" >&2; exit 2 ;;
esac
RESTD
chmod 755 "$LAB"/bin/*
cat >"$LAB/env" <<ENV
export LAB=$LAB SLURM_CONF=$LAB/etc/slurm.conf LAB_PROGRESS=$LAB/progress
ENV

# Daemons ------------------------------------------------------------------------------------------

export SLURM_CONF=$LAB/etc/slurm.conf
# A lab that does not come up leaves nothing running.
trap '[ $? = 0 ] || LAB=$LAB "$here/down.sh" >&2' EXIT
munged --socket="$LAB/run/munge.socket" --key-file="$LAB/etc/munge.key" --pid-file="$LAB/run/munged.pid" \
  --log-file="$LAB/log/munged.log" --seed-file="$LAB/run/munge.seed"
if [ "$DB" != 0 ]; then
  sql=(mariadb --no-defaults -S "$LAB/run/mysql/sock" -uroot)
  mkdir -p "$LAB/mysql" "$LAB/run/mysql"; touch "$LAB/log/mysql.log"
  chown mysql: "$LAB/mysql" "$LAB/run/mysql" "$LAB/log/mysql.log"
  [ -d "$LAB/mysql/mysql" ] || mariadb-install-db --no-defaults --user=mysql --datadir="$LAB/mysql" \
    --auth-root-authentication-method=normal --skip-test-db >"$LAB/log/mysql_install.log" 2>&1
  mariadbd --no-defaults --user=mysql --datadir="$LAB/mysql" --socket="$LAB/run/mysql/sock" \
    --pid-file="$LAB/run/mysql/pid" --skip-networking --innodb-buffer-pool-size=64M \
    --innodb-lock-wait-timeout=900 --log-error="$LAB/log/mysql.log" </dev/null >/dev/null 2>&1 &
  for _ in $(seq 200); do
    "${sql[@]}" -e 'create database if not exists slurm_acct' 2>/dev/null && break; sleep .1
  done
  (umask 077 && cat >"$LAB/etc/slurmdbd.conf") <<CONF
AuthType=auth/munge
AuthInfo=socket=$LAB/run/munge.socket
DbdHost=localhost
DbdPort=$DBDPORT
SlurmUser=root
PidFile=$LAB/run/slurmdbd.pid
LogFile=$LAB/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
CONF
  MYSQL_UNIX_PORT=$LAB/run/mysql/sock slurmdbd
  for _ in $(seq 100); do timeout 3 sacctmgr -n show cluster >/dev/null 2>&1 && break; sleep .1; done
  sacctmgr -i add cluster lab >/dev/null 2>&1 || true
fi
if [ "$ENERGY" != 0 ]; then
  for ((i = 1; i <= NODES; i++)); do
    mkdir -p "$LAB/pm/n$i"
    echo "$IDLE_W" >"$LAB/pm/n$i/watts"
    echo "1000000 J 0 us" >"$LAB/pm/n$i/energy"
    echo "$IDLE_W W 0 us" >"$LAB/pm/n$i/power"
  done
  setsid perl "$LAB/bin/meter" "$LAB/pm" </dev/null >/dev/null 2>&1 &
  echo $! >"$LAB/run/meter.pid"
fi
slurmctld -i
for ((i = 1; i <= NODES; i++)); do "$LAB/bin/node" start n$i; done

# slurmctld goes to the background at once and may die later over its configuration.
for try in $(seq 300); do
  if [ "$try" -gt 20 ] && ! kill -0 "$(cat "$LAB/run/slurmctld.pid" 2>/dev/null)" 2>/dev/null; then
    grep -E 'fatal|error' "$LAB/log/slurmctld.log" | tail -5 >&2
    fail "slurmctld died"
  fi
  idle=$(timeout 5 sinfo -h -N -p gpu -o %t 2>/dev/null | grep -c '^idle$' || true)
  if [ "$idle" = "$NODES" ]; then
    if [ "$REST" != 0 ]; then
      (umask 077 && scontrol token username=root lifespan=86400 | sed -n 's/^SLURM_JWT=//p' >"$LAB/run/token")
      "$LAB/bin/rest" start
      for _ in $(seq 50); do [ ! -S "$LAB/run/rest/socket" ] || break; sleep .1; done
      [ -S "$LAB/run/rest/socket" ] || { tail -3 "$LAB/log/slurmrestd.log" >&2; fail "slurmrestd does not start"; }
    fi
    echo "lab: $NODES nodes with $GPUS GPUs in $LAB; . $LAB/env"
    exit 0
  fi
  sleep .1
done
sinfo -N -l >&2 || true
fail "not all nodes came up; the logs are in $LAB/log"
