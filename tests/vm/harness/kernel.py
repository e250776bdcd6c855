"""Debian kernels for the virtual machine: fetched once with apt, kept outside git, cut down to what a guest needs.

apt runs with a configuration and lists of its own, so the machine's are never touched; packages are checked against
Debian's keyring. What is kept of a kernel: its package (so that nothing is fetched twice), vmlinuz, the modules of
`MODULES` with all they need, decompressed (in the guest that would cost time), and for each the order to load it in.
"""

import hashlib
import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

MIRROR = os.environ.get("WARPRAID_VM_MIRROR", "http://deb.debian.org")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Kernels by the name the command line knows them by: which packages, from which suites.
SERIES = {
    "6.12": (r"linux-image-6\.12\.\d+\+\S+-amd64", ["debian bookworm-backports", "debian-security bookworm-security",
                                                    "debian trixie", "debian-security trixie-security"]),
    "7": (r"linux-image-7\.\d+\.\d+\+\S+-amd64", ["debian trixie-backports"]),
}
# Not in every kernel (some are built in, some have gone into the kernel's library): what is missing is left out.
MODULES = ["virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "nvme", "ublk_drv", "nbd", "loop", "xfs", "ext4", "btrfs",
           "crc32c_generic", "crc32c_intel", "raid0", "raid1", "raid10", "raid456", "dm_mod", "brd"]


class KernelError(Exception):
    """No kernel, with the reason in words."""


def cache_folder():
    """Where kernels are kept."""
    if folder := os.environ.get("WARPRAID_VM_CACHE"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "warpraid" / "vm"


def run(command, **options):
    done = subprocess.run(command, text=True, capture_output=True, **options)
    if done.returncode != 0:
        raise KernelError(f"{' '.join(command[:2])} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def apt_options(folder, suites):
    """A private configuration: sources, lists, archives and no installed packages."""
    for sub in ("lists/partial", "archives/partial"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    lines = []
    for suite in suites:
        archive, name = suite.split()
        lines.append(f"deb [signed-by={KEYRING}] {MIRROR}/{archive} {name} main\n")
    sources.write_text("".join(lines))
    pairs = {"Dir::Etc::SourceList": sources, "Dir::Etc::SourceParts": "/dev/null", "Dir::State::Lists": folder / "lists",
             "Dir::Cache": folder, "Dir::State::status": "/dev/null", "APT::Architecture": "amd64",
             "Acquire::Retries": "3", "APT::Sandbox::User": "root"}
    return [word for key, value in pairs.items() for word in ("-o", f"{key}={value}")]


def newest(names, pattern):
    """The name with the highest version, versions compared as numbers."""
    fitting = [name for name in names if re.fullmatch(pattern, name) and not re.search(r"-(rt|cloud)-amd64$", name)]
    return max(fitting, key=lambda name: [int(number) for number in re.findall(r"\d+", name)], default=None)


def fetch(series, folder):
    """Downloads the newest kernel package of a series; returns its path."""
    pattern, suites = SERIES[series]
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        if not shutil.which(program):
            raise KernelError(f"{program} is not there: kernels are fetched from Debian with apt")
    print(f"fetching the newest kernel {series}.* from {MIRROR} (once)", flush=True)
    options = apt_options(folder / f"apt-{series}", suites)
    done = subprocess.run(["apt-get", *options, "update"], text=True, capture_output=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("E:", "W:", "Err:"))]
    listed = run(["apt-cache", *options, "search", "--names-only", "^linux-(image|binary|modules)-"])
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    name = newest(names, pattern)
    if name is None:
        why = "\n  ".join(said) or "the mirror answers, and none of its suites has one"
        raise KernelError(f"no kernel {series}.* can be had from {MIRROR} ({', '.join(suites)}):\n  {why}\n"
                          "  is the mirror in reach? another one: WARPRAID_VM_MIRROR=http://HOST")
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    try:
        # Later kernels come in parts. The image last: it stands for all of them from then on.
        version = name.removeprefix("linux-image-")
        for part in (f"linux-binary-{version}", f"linux-modules-{version}", name):
            if part in names:
                run(["apt-get", *options, "download", part], cwd=packages)
    except KernelError as error:
        raise KernelError(f"{name} cannot be downloaded from {MIRROR}: {error}") from None
    return next(packages.glob(f"{name}_*.deb"))


def cut_down(package, folder, version):
    """Puts vmlinuz and the wanted modules of a package into `folder`."""
    whole = folder / "whole"
    whole.mkdir(parents=True)
    for part in (package, *package.parent.glob(f"linux-binary-{version}_*.deb"), *package.parent.glob(f"linux-modules-{version}_*.deb")):
        run(["dpkg-deb", "-x", str(part), str(whole)])
    images = [*whole.glob("boot/vmlinuz-*"), *whole.glob(f"usr/lib/modules/{version}/vmlinuz")]
    if not images:
        raise KernelError(f"{package.name} and its parts have no vmlinuz")
    shutil.copy(images[0], folder / "vmlinuz")
    # Since the merge of /usr modules lie there; the tools look under /lib.
    modules = next(path for path in (whole / "lib/modules" / version, whole / "usr/lib/modules" / version) if path.exists())
    base = modules.parents[2]
    run(["depmod", "-b", str(base), version])
    (folder / "modules").mkdir()
    (folder / "order").mkdir()
    for module in MODULES:
        command = ["modprobe", "-d", str(base), "-S", version, "-C", "/dev/null", "--show-depends", module]
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode != 0:
            continue
        order = []
        for line in done.stdout.splitlines():
            words = line.split()
            if words[0] != "insmod":
                continue
            path = Path(words[1])
            name = path.name.split(".ko")[0] + ".ko"
            order.append(name)
            if not (folder / "modules" / name).exists():
                data = path.read_bytes()
                (folder / "modules" / name).write_bytes(lzma.decompress(data) if path.suffix == ".xz" else data)
        (folder / "order" / module).write_text("".join(f"{name}\n" for name in order))
    shutil.rmtree(whole)


def kernel(series, update=False):
    """The kernel of a series: its version and the folder with vmlinuz, modules/ and order/."""
    if series not in SERIES:
        raise KernelError(f"no kernel {series!r}: {', '.join(SERIES)}")
    folder = cache_folder()
    packages = [file.name for file in (folder / "packages").glob("linux-image-*.deb")]
    name = newest([file.split("_")[0] for file in packages], SERIES[series][0])
    if name is None or update:
        package = fetch(series, folder)
    else:
        package = folder / "packages" / next(file for file in packages if file.startswith(f"{name}_"))
    version = package.name.split("_")[0].removeprefix("linux-image-")
    stamp = hashlib.sha256(" ".join(MODULES).encode()).hexdigest()[:12]
    ready = folder / "kernels" / f"{package.stem}-{stamp}"
    if not ready.exists():
        partial = ready.with_name(f"{ready.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        cut_down(package, partial, version)
        partial.rename(ready)
    return package.stem.removeprefix("linux-image-").split("_")[0], ready
