#!/usr/bin/perl
# Emulates what the nodes of a lab draw. It goes by what SLURM shows, four times a second:
#
#   perl lab/power.pl LAB --gpus 4 --base 300 --idle 50 --busy 350 --limit 400 --boot 450 --sleep 10
#
# Each node draws its base and its GPUs: an idle one --idle, one that a job holds --busy (or what the
# job says in LAB/pm/demand/JOBID), but never more than its limit. One that boots draws --boot, one
# that sleeps --sleep. Limits are asked for in LAB/pm/NODE/limitN and hold when they are read back
# from enforcedN; a job whose GPUs are held below what it wants is slowed down (LAB/pm/speed/JOBID).
# What is read one after the other is not of one moment, and whoever is quick must not be charged for
# both what was and what is: limits are read first, since they are raised when something has ended, and
# a node that changes while jobs are read draws the less of both.
# The power now is LAB/pm/NODE/watts; all samples are lines of LAB/pm/samples: time, total, each node.
use strict; use warnings;
use Time::HiRes qw(time sleep);
use Getopt::Long;

my %o = (gpus => 4, base => 300, idle => 50, busy => 350, limit => 400, boot => 450, sleep => 10, every => 0.25);
GetOptions(\%o, map { "$_=f" } qw(gpus base idle busy limit boot sleep every)) or exit 2;
my $lab = shift or die "power: which lab?\n";
$ENV{SLURM_CONF} = "$lab/etc/slurm.conf";
my $pm = "$lab/pm";
mkdir $_ for $pm, "$pm/demand", "$pm/speed";
chmod 01777, "$pm/demand";
open my $samples, '>>', "$pm/samples" or die "power: $pm/samples: $!\n";
$samples->autoflush(1);

sub number { open my $in, '<', $_[0] or return; my $line = <$in> // ''; close $in; return $line =~ /^\s*(\d+(?:\.\d+)?)/ ? $1 : undef }
sub put { my ($path, $value) = @_; open my $out, '>', "$path.new" or return; print $out "$value\n"; close $out; rename "$path.new", $path }
sub names { # n[1-2,4],m7
  my @all;
  while ($_[0] =~ /([^\[,]+)(?:\[([^\]]*)\])?,?/g) {
    my ($name, $ranges) = ($1, $2);
    if (!defined $ranges) { push @all, $name; next }
    for (split /,/, $ranges) { my ($from, $to) = split /-/; push @all, map { "$name$_" } $from .. $to // $from }
  }
  return @all;
}
sub indices { my @all; for (split /,/, $_[0]) { my ($from, $to) = split /-/; push @all, $from .. $to // $from } return @all }

sub nodes { return map { chomp; split /\|/, $_, 2 } `sinfo -h -N -o '%N|%T' 2>/dev/null` }
sub drawn { # of a node in a state, with this for its base and its GPUs
  my ($is, $up) = @_;
  return $is =~ /~|powered_down/i ? $o{sleep} : $is =~ /#|powering_up/i ? $o{boot} : $up;
}

my (%before, %after);
while (1) {
  my $began = time;
  my (%busy, %jobs, %limit);
  for my $node (keys %after) {
    $limit{$node}{$_} = number("$pm/$node/limit$_") // $o{limit} for 0 .. $o{gpus} - 1;
  }
  my %nodes = nodes();
  my @lines = `scontrol -o -d show job 2>/dev/null`;
  my %then = nodes();
  # While slurmctld does not answer, everything goes on as it was.
  if (%nodes && %then) {
    %before = %nodes; %after = %then;
    for (@lines) {
      next unless /JobId=(\d+).*?JobState=(?:RUNNING|COMPLETING|SUSPENDED)/;
      my $job = $1;
      while (/ Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=\S*?\(IDX:([\d,-]+)\)/g) {
        my ($where, $which) = ($1, $2);
        for my $node (names($where)) { $busy{$node}{$_} = $job for indices($which); }
      }
      $jobs{$job} = number("$pm/demand/$job") // $o{busy};
    }
    our %last = %busy; our %demand = %jobs;
  } else { our (%last, %demand); %busy = %last; %jobs = %demand }
  my (%speed, $total, @each);
  for my $node (sort keys %after) {
    mkdir "$pm/$node";
    my $watts = $o{base};
    for my $gpu (0 .. $o{gpus} - 1) {
      my $limit = $limit{$node}{$gpu} // $o{limit};
      put("$pm/$node/enforced$gpu", $limit);
      my $job = $busy{$node}{$gpu};
      if (!defined $job) { $watts += $o{idle}; next }
      my $wants = $jobs{$job};
      my $gets = $wants < $limit ? $wants : $limit;
      my $slow = sqrt($gets / $wants);
      $speed{$job} = $slow if !defined $speed{$job} || $slow < $speed{$job};
      $watts += $gets;
    }
    my ($one, $two) = map { drawn($_, $watts) } $before{$node} // $after{$node}, $after{$node};
    $watts = $one < $two ? $one : $two;
    put("$pm/$node/watts", $watts);
    $total += $watts; push @each, "$node=$watts";
  }
  put("$pm/speed/$_", sprintf '%.4f', $speed{$_}) for keys %speed;
  printf $samples "%.3f %.1f %s\n", time, $total, join ' ', @each if %after;
  my $left = $o{every} - (time - $began);
  sleep $left if $left > 0;
}
