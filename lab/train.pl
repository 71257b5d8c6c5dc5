#!/usr/bin/perl
# A stand-in for a training script: it does work at the rate of its GPUs, saves its state when it is
# asked to, and goes on from there after a restart. A batch script ends with
#
#   exec perl lab/train.pl --work 600 --rate 10 --checkpoint state
#
# --work SAMPLES       how much there is to do
# --rate SAMPLES_PER_S on one GPU (10)
# --serial FRACTION    of the work that more GPUs do not speed up (0.05), by Amdahl's law
# --checkpoint FILE    where the state is kept, in the working directory if not absolute
# --save S --load S    how long writing it takes, and reading it after a restart (0)
# --every S            between two lines of progress (1)
# --speed FILE         if it is there, a number in it slows the work down or speeds it up
#
# USR1: saves and exits with 86. TERM: saves and exits with 143. At the end: saves and exits with 0.
# Progress goes to $WATTLINE_PROGRESS, or $LAB_PROGRESS/JOBID: "done=… of=… t=… gpus=… rate=…".
# Each start, save and end is a line on standard output.
use strict; use warnings;
use Time::HiRes qw(time);
use Getopt::Long;
use IO::Handle;

my %o = (rate => 10, serial => 0.05, save => 0, load => 0, every => 1, tick => 0.1);
GetOptions(\%o, 'work=f', 'rate=f', 'serial=f', 'checkpoint=s', 'save=f', 'load=f', 'every=f', 'tick=f', 'speed=s')
  or exit 2;
die "train: --work and --checkpoint are needed\n" unless defined $o{work} && defined $o{checkpoint};
STDOUT->autoflush(1);

my $job = $ENV{SLURM_JOB_ID} // 'none';
my $restart = $ENV{SLURM_RESTART_COUNT} // 0;
my $nodes = $ENV{SLURM_JOB_NODELIST} // 'none';
my @gpus = split /,/, $ENV{CUDA_VISIBLE_DEVICES} // '';
my $gpus = @gpus * ($ENV{SLURM_JOB_NUM_NODES} // 1);
my $rate = $gpus ? $o{rate} / ($o{serial} + (1 - $o{serial}) / $gpus) : 0;
my $progress = $ENV{WATTLINE_PROGRESS} // (defined $ENV{LAB_PROGRESS} ? "$ENV{LAB_PROGRESS}/$job" : undef);

my $asked;   # the first signal decides how it ends
$SIG{USR1} = sub { $asked //= 'usr1' };
$SIG{TERM} = sub { $asked //= 'term' };
my %code = (usr1 => 86, term => 143, end => 0);

# Sleeps without using the CPU; a signal ends a nap early, but not the whole sleep.
sub nap { select undef, undef, undef, $_[0] if $_[0] > 0 }
sub sleep_until { my ($then, $break) = @_; while ((my $left = $then - time) > 0) { last if $break && $asked; nap($left < 0.2 ? $left : 0.2) } }
sub say_line { printf "%.3f %s job=%s restart=%d nodes=%s gpus=%d %s\n", time, $_[0], $job, $restart, $nodes, $gpus, $_[1] }

sub report {
  my ($done) = @_;
  return unless defined $progress && open my $out, '>>', $progress;
  printf $out "done=%.3f of=%.3f t=%.3f gpus=%d rate=%.3f restart=%d\n", $done, $o{work}, time, $gpus, $rate, $restart;
  close $out;
}

sub save {
  my ($done) = @_;
  sleep_until(time + $o{save}, 0);
  my $new = "$o{checkpoint}.new";
  open my $out, '>', $new or die "train: $new: $!\n";
  printf $out "done=%.6f\n", $done or die "train: $new: $!\n";
  $out->flush; $out->sync; close $out or die "train: $new: $!\n";
  rename $new, $o{checkpoint} or die "train: $o{checkpoint}: $!\n";
}

sub speed {
  return 1 unless defined $o{speed} && open my $in, '<', $o{speed};
  my $line = <$in> // ''; close $in;
  return $line =~ /^\s*(\d+(?:\.\d+)?)/ ? $1 : 1;
}

my $done = 0;
if (open my $in, '<', $o{checkpoint}) {
  my $line = <$in> // ''; close $in;
  $line =~ /^done=(\d+(?:\.\d+)?)$/ or die "train: $o{checkpoint} is not a checkpoint\n";
  $done = $1;
}
say_line('start', sprintf 'from=%.6f of=%.3f rate=%.3f', $done, $o{work}, $rate);
report($done);
if ($done > 0) {
  sleep_until(time + $o{load}, 1);
  # Nothing has been done yet, so the state is still the one that was loaded.
  if ($asked) { say_line('stop', sprintf 'why=%s done=%.6f', $asked, $done); exit $code{$asked} }
}

my ($last, $shown) = (time, time);
while (!$asked && $done < $o{work}) {
  my $left = $rate > 0 ? ($o{work} - $done) / $rate : $o{tick};
  nap($left < $o{tick} ? $left + 0.001 : $o{tick});
  # By the clock, so that a busy machine makes the steps longer but not fewer.
  my $now = time;
  $done += $rate * speed() * ($now - $last); $last = $now;
  $done = $o{work} if $done > $o{work};
  if ($now - $shown >= $o{every}) { report($done); $shown = $now }
}
my $why = $done >= $o{work} ? 'end' : $asked;
save($done);
report($done);
say_line('stop', sprintf 'why=%s done=%.6f', $why, $done);
exit $code{$why};
