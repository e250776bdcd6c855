# XFS, ext4 and btrfs on a RAID 6 of six NVMe drives, as a block device: made, mounted, verified, trimmed, checked (MK-04, MK-06).
#: drives=6x256M 1x256M:4096
#: modules=ublk_drv xfs ext4 btrfs crc32c_generic crc32c_intel
#: timeout=900
#: ci=yes
. "$ROOT/tests/vm/guest/filesystems.sh"
