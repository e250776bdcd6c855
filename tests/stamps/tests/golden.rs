//! The member check against arrays made by the real Linux md: clean ones fit, and a changed byte does not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use stamps::members::{Mismatch, check};

/// The members of a golden array, unpacked into a folder that is removed when dropped.
struct Array {
    folder: PathBuf,
    drives: Vec<PathBuf>,
}

impl Array {
    fn unpack(name: &str) -> Self {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(name);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique =
            format!("warpraid-golden-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&folder).unwrap();
        let mut drives = Vec::new();
        for i in 0.. {
            let packed = golden.join(format!("d{i}.img.gz"));
            if !packed.exists() {
                break;
            }
            let image = Command::new("gzip").arg("-dc").arg(&packed).output().expect("gzip runs");
            assert!(image.status.success(), "{}", packed.display());
            let drive = folder.join(format!("d{i}.img"));
            std::fs::write(&drive, image.stdout).unwrap();
            drives.push(drive);
        }
        assert!(drives.len() >= 2, "{} holds golden images", golden.display());
        Self { folder, drives }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let _left = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn arrays_of_the_real_md_fit_in_any_order() {
    for name in ["raid1", "raid5", "raid6", "raid10", "raid5-nobitmap"] {
        let mut array = Array::unpack(name);
        for _ in 0..array.drives.len() {
            array.drives.rotate_left(1);
            let checked = check(&array.drives, |_| {}).unwrap();
            assert_eq!(checked.mismatches, [], "{name}");
            assert!(checked.stripes > 10 && checked.bytes > 1 << 20, "{name}: {checked:?}");
        }
    }
}

#[test]
fn a_changed_byte_of_any_member_is_found_in_its_stripe() {
    for name in ["raid1", "raid5", "raid6", "raid10"] {
        let array = Array::unpack(name);
        for drive in &array.drives {
            let mut image = std::fs::read(drive).unwrap();
            let data_at =
                usize::try_from(u64::from_le_bytes(image[4224..4232].try_into().unwrap()) * 512).unwrap();
            let place = data_at + 3 * (64 << 10) + 77;
            image[place] ^= 4;
            std::fs::write(drive, &image).unwrap();
            let found = check(&array.drives, |_| {}).unwrap().mismatches;
            assert!(
                !found.is_empty() && found.iter().all(|Mismatch { stripe, .. }| *stripe == 3),
                "{name}: {found:?}"
            );
            image[place] ^= 4;
            std::fs::write(drive, &image).unwrap();
        }
    }
}

#[test]
fn a_member_too_few_or_twice_is_refused() {
    let array = Array::unpack("raid5");
    assert!(check(&array.drives[1..], |_| {}).is_err());
    let twice = [&array.drives[..], &array.drives[..1]].concat();
    assert!(check(&twice, |_| {}).is_err());
}
