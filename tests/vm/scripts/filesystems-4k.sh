# The same as `filesystems` on drives with blocks of 4096 bytes.
#: drives=6x256M:4096
#: modules=ublk_drv xfs ext4 btrfs crc32c_generic crc32c_intel
#: timeout=900
#: ci=yes
. "$ROOT/tests/vm/guest/filesystems.sh"
