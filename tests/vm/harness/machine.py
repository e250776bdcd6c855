"""One virtual machine: initramfs, QEMU, and the requests its guest script makes.

No image: a small initramfs loads modules and mounts the host's own root, read-only over 9p, under a tmpfs overlay; so
every tool and every build output is in the guest at the same path, and nothing the guest does reaches the host. The
guest's second serial line carries one request a line, answered by one line:

  QMP JSON       a command for QEMU (drives that come and go)
  SH COMMAND     a shell command on the host, run in the script's folder there
  CUT            power cut: QEMU and the servers of its drives are killed, drives keep what they had made durable,
                 and the script starts again in a fresh machine with PHASE one higher

A kernel that dies before the script has begun is booted again, at most twice, and that is said: under emulation with
several threads a kernel that patches its own code now and then trips over it (int3 in sched_clock_cpu was seen).

A script ends by its exit code, written to the shared folder; no code written is a failure.
"""

import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

GUEST = Path(__file__).parent.parent / "guest"
ROOT = Path(__file__).resolve().parents[3]
# What every guest loads; scripts add theirs. A small initramfs is a fast boot.
BASE_MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "nvme", "virtio_blk"]
# What a guest script may say of itself in lines `#: key=value`.
DEFAULTS = {"drives": "", "memory": "1280M", "timeout": "600", "modules": "", "backend": "raw", "ci": "no", "count": "no"}


class Machine:
    """A guest script in a virtual machine."""

    def __init__(self, script, kernel, folder, log):
        self.script, self.kernel, self.folder, self.log = script, kernel, folder, log
        self.options = dict(DEFAULTS)
        for line in script.read_text().splitlines():
            if line.startswith("#: "):
                key, _, value = line[3:].partition("=")
                if key not in DEFAULTS:
                    raise ValueError(f"{script}: no option {key!r}")
                self.options[key] = value.strip()
        self.drives = self.parse_drives()
        self.servers, self.qemu = [], None

    def parse_drives(self):
        """`6x320M 1x320M:4096`: how many, how large, with which block size."""
        drives = []
        for word in self.options["drives"].split():
            count, _, rest = word.partition("x")
            size, _, block = rest.partition(":")
            drives += [(size, block or "512")] * int(count)
        return drives

    def initramfs(self):
        """Builds the guest's first file system; returns its path."""
        root = self.folder / "initramfs"
        shutil.rmtree(root, ignore_errors=True)
        for name in ("bin", "modules", "order", "proc", "sys", "dev", "r"):
            (root / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox"), root / "bin/busybox")
        for module in BASE_MODULES + self.options["modules"].split():
            order = self.kernel / "order" / module
            if not order.exists():
                continue
            shutil.copy(order, root / "order")
            for name in order.read_text().split():
                shutil.copy(self.kernel / "modules" / name, root / "modules")
        shutil.copy(GUEST / "init", root / "init")
        (root / "init").chmod(0o755)
        image = self.folder / "initramfs.cpio"
        names = subprocess.run(["find", ".", "-print0"], cwd=root, capture_output=True, check=True).stdout
        with open(image, "wb") as out:
            subprocess.run(["cpio", "--null", "--quiet", "-o", "-H", "newc"], cwd=root, input=names, stdout=out, check=True)
        shutil.rmtree(root)
        return image

    def drive_file(self, number):
        return self.folder / f"drive{number}"

    def drive_arguments(self):
        """QEMU's words for the drives; starts their servers where they have one."""
        words = []
        for number, (size, block) in enumerate(self.drives):
            file = self.drive_file(number)
            if not file.exists():
                subprocess.run(["truncate", "-s", size, str(file)], check=True)
            if self.options["backend"] == "raw":
                back = f"driver=raw,node-name=d{number},file.driver=file,file.filename={file},discard=unmap"
            else:
                # The node below can be taken out and another put over it while the machine runs (blkdebug).
                path = self.serve(number, file)
                words += ["-blockdev", f"driver=nbd,node-name=p{number},server.type=unix,server.path={path},discard=unmap"]
                back = f"driver=raw,node-name=d{number},file=p{number},discard=unmap"
            # QEMU's NVMe drives say that they know FUA and drop it: such a write lies in the volatile cache and is lost with
            # the power. Where that matters drives are virtio's, which know flushes only, and say so.
            kind = "virtio-blk-pci" if self.options["backend"] == "cache" else "nvme"
            words += ["-device", f"pcie-root-port,id=rp{number},chassis={number + 1},slot={number + 1}", "-blockdev", back,
                      "-device", f"{kind},id=nv{number},serial=VM{number:02},bus=rp{number},drive=d{number}"
                                 f",logical_block_size={block},physical_block_size={block}"]
        return words

    def serve(self, number, file):
        """An nbdkit in front of a drive: `cache`, a volatile write cache that dies with it; `fault`, which hangs
        (`p` and `r` on the socket pauseN), fails (while the file errorN is there) and is slow (bits a second in rateN)."""
        path = self.folder / f"drive{number}.sock"
        path.unlink(missing_ok=True)
        if self.options["backend"] == "cache":
            filters = ["--filter=cache", "file", str(file), "cache=writeback", "cache-min-block-size=4096"]
        else:
            (self.folder / f"pause{number}").unlink(missing_ok=True)
            filters = ["--filter=pause", "--filter=error", "--filter=rate", "file", str(file),
                       f"pause-control={self.folder}/pause{number}", "error=EIO", "error-rate=100%",
                       f"error-file={self.folder}/error{number}", "rate=100G", f"rate-file={self.folder}/rate{number}"]
        command = ["nbdkit", "-f", "-U", str(path), "-P", str(self.folder / f"pid{number}"), *filters]
        self.servers.append(subprocess.Popen(command, stdout=self.log, stderr=self.log))
        self.wait_for(path.exists, f"nbdkit of drive {number}")
        return path

    def wait_for(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} does not come up")
            time.sleep(0.02)

    def start(self, image, phase):
        for name in ("qmp", "requests"):
            (self.folder / name).unlink(missing_ok=True)
        share = self.folder / "share"
        share.mkdir(exist_ok=True)
        (share / "begun").unlink(missing_ok=True)
        environment = {"PHASE": str(phase), "WARPRAID": os.environ["WARPRAID_BIN"], "ROOT": str(ROOT),
                       "VM_FOLDER": str(self.folder), "VM_KILLS": os.environ.get("VM_KILLS", "5"),
                       "VM_LEVELS": os.environ.get("VM_LEVELS", "5 6")}
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment.items())
        (share / "environment").write_text(lines)
        # A copy: the script may lie where the guest has a file system of its own.
        shutil.copy(self.script, share / "script")
        # Counting: one guest instruction is one nanosecond of the guest, on one CPU, so its figures are the same at each run.
        counts = self.options["count"] == "yes"
        speed = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-smp", "1"] if counts \
            else ["-accel", "tcg,thread=multi", "-smp", "2"]
        arguments = [
            "qemu-system-x86_64", *speed, "-cpu", "max", "-M", "q35", "-m", self.options["memory"], "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
            "-chardev", f"socket,id=rq,path={self.folder}/requests,server=on,wait=off", "-device", "isa-serial,chardev=rq",
            "-qmp", f"unix:{self.folder}/qmp,server=on,wait=off", "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04",
            "-fsdev", f"local,id=h,path={share},security_model=none", "-device", "virtio-9p-pci,fsdev=h,mount_tag=host",
            "-fsdev", "local,id=r,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=r,mount_tag=hostroot",
            "-kernel", str(self.kernel / "vmlinuz"), "-initrd", str(image),
            "-append", f"console=ttyS0 quiet panic=-1 vm.modules={','.join(self.options['modules'].split())}",
            *self.drive_arguments()]
        self.qemu = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.wait_for(lambda: (self.folder / "requests").exists() or self.qemu.poll() is not None, "QEMU")

    def qmp(self, command):
        """Runs a QMP command; returns QEMU's answer as text."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(60)
            link.connect(str(self.folder / "qmp"))
            stream = link.makefile("rw")
            stream.readline()
            for one in ('{"execute": "qmp_capabilities"}', command):
                stream.write(one + "\n")
                stream.flush()
                while "event" in (answer := json.loads(stream.readline())):
                    pass
        return json.dumps(answer)

    def answer(self, request):
        """Does what the guest asks; returns the line it is told. `None`: the machine is gone."""
        word, _, rest = request.partition(" ")
        self.log.write(f"[host] {request}\n")
        self.log.flush()
        if word == "QMP":
            return self.qmp(rest)
        if word == "SH":
            done = subprocess.run(["bash", "-c", rest], cwd=self.folder, capture_output=True, text=True, timeout=120)
            said = " ".join((done.stdout + done.stderr).split())
            return f"{done.returncode} {said}"
        if word == "CUT":
            self.kill()
            return None
        return f"ERR no such request: {word}"

    def kill(self):
        """Ends everything of this machine at once."""
        for process in [self.qemu, *self.servers]:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self.servers = []

    def attend(self, deadline):
        """Answers requests until the machine ends. Returns `cut`, `end` or `timeout`."""
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self.folder / "requests"))
            held = b""
            while self.qemu.poll() is None:
                if time.monotonic() > deadline:
                    return "timeout"
                if not select.select([link], [], [], 0.2)[0]:
                    continue
                got = link.recv(65536)
                if not got:
                    self.qemu.wait(timeout=60)
                    return "end"
                held += got
                while b"\n" in held:
                    line, _, held = held.partition(b"\n")
                    request = line.decode(errors="replace").strip()
                    if not request:
                        continue
                    try:
                        said = self.answer(request)
                    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                        said = f"ERR {error}"
                    if said is None:
                        return "cut"
                    link.sendall(said.encode() + b"\n")
        return "end"

    def run(self):
        """Runs the script to its end; returns None, or why it failed."""
        result = self.folder / "share" / "result"
        deadline = time.monotonic() + int(self.options["timeout"])
        image = self.initramfs()
        begun = self.folder / "share" / "begun"
        phase, boots = 1, 0
        try:
            while True:
                self.start(image, phase)
                how = self.attend(deadline)
                if how == "cut":
                    phase, boots = phase + 1, 0
                    continue
                if how == "timeout":
                    return f"not done after {self.options['timeout']} s"
                if begun.exists() or boots == 2:
                    break
                boots += 1
                self.kill()
                self.log.write("[host] the kernel died before the script began: MEASURED booted again\n")
                self.log.flush()
        finally:
            self.kill()
        if not result.exists():
            return "the machine ended without a result (its kernel's last words are in the log)"
        code = result.read_text().strip()
        return None if code == "0" else f"exit code {code}"
