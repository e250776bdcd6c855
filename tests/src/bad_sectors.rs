//! A drive with sectors that cannot be read until they are rewritten, as real ones are: a file behind nbdkit's eval plugin,
//! mounted as a file again by nbdfuse.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::lab::Lab;
use crate::mount::FuseFile;
use crate::servants::Servants;
use crate::tool;

const SECTOR: u64 = 512;

/// Fails with EIO if the request touches a listed sector; else reads. `$3` is the length, `$4` the offset.
const PREAD: &str = r#"while read s; do
  if [ "$s" -lt $(($4 + $3)) ] && [ $((s + 512)) -gt "$4" ]; then echo "EIO medium error" >&2; exit 1; fi
done < "$BAD"
dd if="$FILE" bs=1M iflag=skip_bytes,count_bytes skip="$4" count="$3" status=none"#;

/// Writes, and takes the sectors it covers off the list.
const PWRITE: &str = r#"dd of="$FILE" bs=1M oflag=seek_bytes iflag=fullblock conv=notrunc seek="$4" status=none || exit 1
if [ -s "$BAD" ]; then
  awk -v from="$4" -v to="$(($4 + $3))" '!($1 >= from && $1 + 512 <= to)' "$BAD" > "$BAD.new" && mv "$BAD.new" "$BAD"
fi"#;

/// A drive with bad sectors. Its processes end with the daemon of its lab or with itself, whichever goes first.
#[derive(Debug)]
pub struct BadSectors {
    file: FuseFile,
    servants: Servants,
    pids: [u32; 2],
    list: PathBuf,
    backing: PathBuf,
}

impl BadSectors {
    /// A blank drive of `size_bytes`, all of it readable.
    #[must_use]
    pub fn new(lab: &Lab, name: &str, size_bytes: u64) -> Self {
        let backing = lab.drive(&format!("{name}.backing"), size_bytes);
        let (socket, list) = (lab.join(&format!("{name}.nbd")), lab.join(&format!("{name}.bad")));
        std::fs::write(&list, "").expect("list");
        let server = tool::command("nbdkit")
            .env("FILE", &backing)
            .env("BAD", &list)
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .args([
                "eval",
                "thread_model=echo serialize_all_requests",
                "can_write=exit 0",
                "can_flush=exit 0",
            ])
            .arg(format!("get_size=echo {size_bytes}"))
            .args(["flush=exit 0".to_owned(), format!("pread={PREAD}"), format!("pwrite={PWRITE}")])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdkit runs; `tests/run --stage tools` installs it");
        tool::wait_until("nbdkit listens", Duration::from_secs(30), || socket.exists());
        let server = lab.servants().add(server);
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let (file, fuse) = FuseFile::mount_by(&uri, &lab.join(&format!("{name}.drive")));
        let pids = [server, lab.servants().add(fuse)];
        Self { file, servants: lab.servants().clone(), pids, list, backing }
    }

    /// The drive.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file behind it, readable everywhere.
    #[must_use]
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Makes the sectors of these ranges unreadable until they are rewritten.
    pub fn spoil(&self, ranges: &[Range<u64>]) {
        let mut list = std::fs::read_to_string(&self.list).expect("list");
        for sector in ranges.iter().flat_map(|range| range.clone().step_by(512)) {
            assert!(sector.is_multiple_of(SECTOR), "{sector} is no sector");
            writeln!(list, "{sector}").expect("text");
        }
        std::fs::write(&self.list, list).expect("list");
    }

    /// How many sectors cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> usize {
        std::fs::read_to_string(&self.list).expect("list").lines().count()
    }
}

impl Drop for BadSectors {
    fn drop(&mut self) {
        self.servants.end_these(&self.pids);
    }
}
