#!/bin/busybox sh
# Process 1 of a guest at first: mounts the machine's file system, read-only under a layer in memory, and hands over to the
# lab's own process 1. Where that lies, and what else differs from lab to lab, is in `boot.sh` of the lab's directory.
B=/bin/busybox
$B mkdir -p /proc /sys /low /up /new /lab
$B mount -t proc p /proc
$B mount -t sysfs s /sys
while read m; do $B insmod /mod/$m; done < /mod/order
P=trans=virtio,version=9p2000.L,msize=512000
# Cached: a guest boots anew for each lab, and no file of the system changes meanwhile.
$B mount -t 9p -o $P,ro,cache=loose host /low
$B mount -t tmpfs t /up
$B mkdir /up/u /up/w
# A lab of a plain user sees the system's files as another's than root's, and programs that change the user would do so to that.
$B mount -t overlay -o nosuid,lowerdir=/low,upperdir=/up/u,workdir=/up/w,redirect_dir=off ov /new
$B mount -t 9p -o $P lab /lab
. /lab/boot.sh
$B mount -t proc p /new/proc
$B mount -t sysfs s /new/sys
$B mount -t devtmpfs d /new/dev
$B mkdir -p /new/dev/pts /new/dev/shm /new/lib/modules
$B mount -t devpts p /new/dev/pts
$B mount -t tmpfs -o mode=1777 s /new/dev/shm
$B mount -t tmpfs r /new/run
$B mount -t cgroup2 c /new/sys/fs/cgroup
$B mkdir -p "/new$lab_dir"
$B mount -o bind /lab "/new$lab_dir"
$B mount -o bind "/low$modules" /new/lib/modules
# What a program writes where the user stands is to be found there, and not in the guest's memory.
[ -z "$here" ] || $B mount -t 9p -o $P,cache=mmap here "/new$here"
exec $B chroot /new /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb "$agent" lab-node "$node"
