//! A control side made of fixed documents: it answers every verb, remembers what it was asked, and can be told to refuse.

use std::sync::Mutex;
use std::time::Duration;

use server::control::group_scrub::GroupScrub;
use server::control::group_set::GroupSet;
use server::control::model::*;
use server::control::request::*;
use server::control::{Answer, ApiError, Control, EventCode, ProblemCode, Reply};

/// The clock of every document.
pub const NOW_UNIX_S: u64 = 1_796_055_164;
pub const GROUP_UUID: &str = "01234567-89ab-4def-bedc-ba9876543210";
pub const DISK_UUID: &str = "11234567-89ab-4def-bedc-ba9876543211";
pub const SERIAL: &str = "S4X9NF0M0000003";

/// What `status` is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scene {
    #[default]
    Healthy,
    Degraded,
    Rebuilding,
    Offline,
    Empty,
}

#[derive(Default)]
pub struct Fake {
    pub scene: Mutex<Scene>,
    /// Every verb is refused with this.
    pub refusal: Mutex<Option<ApiError>>,
    /// Verbs with their arguments, in the order they ended.
    pub calls: Mutex<Vec<String>>,
}

impl Fake {
    fn answer<T>(&self, call: String, data: T) -> Answer<T> {
        self.calls.lock().unwrap().push(call);
        match self.refusal.lock().unwrap().clone() {
            Some(error) => Err(error),
            None => Ok(Reply::from(data).warn(ProblemCode::GroupStart, "this daemon is made of paper")),
        }
    }

    fn action(&self, call: String, verb: &str, subject: &str, dry_run: bool) -> ActionDoc {
        let mut done = ActionDoc::new(verb, subject, dry_run, vec![format!("write superblocks for {call}")]);
        match verb.split_once(' ').unwrap().0 {
            "alert" => {}
            "group" => done.groups = vec![group(Scene::Healthy)],
            "disk" => done.disk = Some(disk()),
            _ => done.drive = Some(drive()),
        }
        if verb == "group create" {
            done.plan = Some(plan());
        }
        done
    }

    fn act(
        &self,
        verb: &str,
        subject: &str,
        dry_run: bool,
        how: &impl core::fmt::Debug,
    ) -> Answer<ActionDoc> {
        let done = self.action(format!("{verb} {subject}"), verb, subject, dry_run);
        self.answer(format!("{verb} {subject} {how:?}"), done)
    }
}

pub fn member(slot: u8, state: MemberState) -> MemberDoc {
    MemberDoc {
        slot,
        state,
        drive: Some(format!("/dev/nvme{slot}n1")),
        serial: Some(format!("S4X9NF0M000000{slot}")),
        write_mostly: false,
        successor: None,
        device_uuid: Some(format!("2{slot}234567-89ab-4def-bedc-ba9876543210")),
        size_bytes: Some(3_840_755_982_336),
        errors: ErrorCountsDoc::default(),
        why: None,
        progress: None,
        latency: None,
    }
}

fn problem(code: &str, health: Health, why: &str, risk: &str, next: &str) -> ProblemDoc {
    ProblemDoc {
        code: ProblemCode::parse(code).unwrap().into(),
        health,
        group: Some("tank".into()),
        slot: Some(3),
        drive: Some("/dev/nvme3n1".into()),
        serial: Some(SERIAL.into()),
        since_unix_s: Some(NOW_UNIX_S - 754),
        why: why.into(),
        risk: risk.into(),
        next: next.into(),
    }
}

pub fn group(scene: Scene) -> GroupDoc {
    let mut group = GroupDoc {
        name: "tank".into(),
        uuid: GROUP_UUID.into(),
        level: LevelDoc::Raid6,
        chunk_bytes: 65536,
        stripe_bytes: 6 * 65536,
        block_size_bytes: 512,
        capacity_bytes: 23_038_341_439_488,
        raw_bytes: 30_726_047_858_688,
        parity_bytes: 7_679_447_146_496,
        metadata_bytes: 8_259_272_704,
        free_bytes: 5_497_558_138_880,
        state: GroupState::Healthy,
        health: Health::Ok,
        tolerates: 2,
        epoch: EpochDoc { counter: 17, id: "f1234567-89ab-4def-bedc-ba9876543210".into() },
        journal: Journal::None,
        forced: false,
        members: (0..8).map(|slot| member(slot, MemberState::InSync)).collect(),
        progress: Vec::new(),
        scrub: ScrubSummaryDoc {
            last_ended_unix_s: Some(NOW_UNIX_S - 86_400),
            checked_stripes: 58_590_000,
            checked_bytes: 23_038_341_439_488,
            ..ScrubSummaryDoc::default()
        },
        lost: Vec::new(),
        settings: GroupSettingsDoc::default(),
        disks: vec!["home".into(), "scratch".into()],
        problems: Vec::new(),
    };
    match scene {
        Scene::Healthy | Scene::Empty => {}
        Scene::Degraded => {
            group.state = GroupState::Degraded;
            group.health = Health::Warning;
            group.tolerates = 1;
            group.members[3].state = MemberState::Failed;
            group.members[3].errors.commands = 1;
            group.members[3].why = Some("a write failed (EIO)".into());
            group.problems = vec![problem(
                "group.degraded",
                Health::Warning,
                "slot 3 (/dev/nvme3n1): a write failed (EIO)",
                "can lose 1 more drive",
                "warpraid group replace tank --slot 3 NEW_DRIVE",
            )];
        }
        Scene::Rebuilding => {
            group.state = GroupState::Rebuilding;
            group.health = Health::Warning;
            group.tolerates = 1;
            group.members[3].state = MemberState::Rebuilding;
            group.members[3].drive = Some("/dev/nvme9n1".into());
            let progress =
                ProgressDoc::new(Operation::Rebuild, Some(3), 1_612_000_000_000, 3_839_723_573_248);
            let progress = progress.measured(NOW_UNIX_S - 700, Some(2_302_857_142));
            group.members[3].progress = Some(progress.clone());
            group.progress = vec![progress];
            group.problems = vec![problem(
                "group.rebuilding",
                Health::Warning,
                "slot 3 (/dev/nvme9n1) is being rebuilt",
                "can lose 1 more drive",
                "warpraid group wait tank --for rebuilt",
            )];
        }
        Scene::Offline => {
            group.state = GroupState::Offline;
            group.health = Health::Critical;
            group.tolerates = 0;
            for slot in [1, 3, 6] {
                group.members[slot].state = MemberState::Missing;
                group.members[slot].drive = None;
                group.members[slot].size_bytes = None;
            }
            group.problems = vec![problem(
                "group.offline",
                Health::Critical,
                "slots 1, 3 and 6 are missing: RAID 6 can lose 2 drives, not 3",
                "nothing is served; no data is lost as long as one of the missing drives comes back",
                "warpraid group assemble tank DRIVE...",
            )];
            let offline = &mut group.problems[0];
            (offline.slot, offline.drive, offline.serial) = (None, None, None);
        }
    }
    group
}

pub fn mkfs() -> MkfsDoc {
    MkfsDoc {
        xfs: "mkfs.xfs -d su=64k,sw=6 DEVICE".into(),
        ext4: "mkfs.ext4 -E stride=16,stripe_width=96 DEVICE".into(),
    }
}

pub fn disk() -> DiskDoc {
    DiskDoc {
        group: "tank".into(),
        name: "home".into(),
        uuid: DISK_UUID.into(),
        start_bytes: 393_216,
        size_bytes: 12_000_000_245_760,
        block_size_bytes: 512,
        exposures: vec![ExposureDoc {
            kind: ExposureKind::Nbd,
            address: "unix:/run/warpraid/home.sock".into(),
            uri: "nbd+unix:///tank/home?socket=/run/warpraid/home.sock".into(),
            export: "tank/home".into(),
            read_only: true,
            clients: vec!["pid 4711, uid 0".into()],
        }],
        scrub: Some(DiskScrubDoc { ended_unix_s: NOW_UNIX_S - 86_400, complete: true, findings: 0 }),
        lost: vec![LostRangeDoc {
            disk: Some("home".into()),
            offset_bytes: 1_048_576,
            length_bytes: 1536,
            filesystem: Some("XFS file system".into()),
            find: vec!["xfs_io -r -c 'fsmap -d 2048 2050' MOUNTPOINT".into()],
        }],
        mkfs: mkfs(),
    }
}

/// A RAID 6 scrub that found one wrong member and one lost block.
pub fn scrub() -> ScrubDoc {
    let member = |slot: u8| FindingMemberDoc {
        slot,
        role: "data".into(),
        drive: Some(format!("/dev/nvme{slot}n1")),
        serial: Some(format!("S4X9NF0M000000{slot}")),
        offset_bytes: 18_874_368,
    };
    let finding = |what, members| FindingDoc {
        stripe: 12,
        chunk_offset_bytes: 512,
        length_bytes: 512,
        what,
        members,
        disks: vec![DiskRangeDoc { disk: Some("home".into()), offset_bytes: 4096, length_bytes: 512 }],
        repaired: false,
    };
    ScrubDoc {
        group: "tank".into(),
        uuid: GROUP_UUID.into(),
        state: ScrubActivity::Idle,
        why: None,
        progress: None,
        current: None,
        last: Some(ScrubRunDoc {
            started_unix_s: NOW_UNIX_S - 90_000,
            ended_unix_s: Some(NOW_UNIX_S - 86_400),
            stripes: 1000,
            next_stripe: 1000,
            checked_stripes: 999,
            skipped_stripes: 1,
            checked_bytes: 999 * 393_216,
            mismatched_stripes: 1,
            rewritten_blocks: 2,
            lost_blocks: 1,
            findings: vec![
                finding(FindingKind::Located, vec![member(3)]),
                finding(FindingKind::Lost, vec![member(1), member(2)]),
            ],
            ..ScrubRunDoc::default()
        }),
        next_due_unix_s: Some(NOW_UNIX_S + 518_400),
    }
}

pub fn drive() -> DriveDoc {
    DriveDoc {
        path: "/dev/nvme3n1".into(),
        kind: DriveKind::Nvme,
        serial: Some(SERIAL.into()),
        model: Some("MODEL 9".into()),
        size_bytes: 3_840_755_982_336,
        block_size_bytes: 512,
        numa_node: Some(0),
        state: DriveState::Used,
        why: None,
        next: None,
        group: None,
        group_uuid: None,
        slot: None,
        device_uuid: None,
        signatures: vec![SignatureDoc {
            kind: "ext4".into(),
            offset_bytes: 1080,
            label: Some("old".into()),
            uuid: Some("31234567-89ab-4def-bedc-ba9876543210".into()),
        }],
        holders: vec!["/mnt/old".into()],
        errors: ErrorCountsDoc { commands: 3 },
        smart: None,
    }
}

pub fn plan() -> PlanDoc {
    let drive = |slot: u8| PlanDriveDoc {
        slot,
        path: format!("/dev/nvme{slot}n1"),
        serial: None,
        numa_node: None,
        size_bytes: 33_554_432,
        data_bytes: 14_680_064,
        metadata_bytes: 17_825_792,
        unused_bytes: 1_048_576,
    };
    PlanDoc {
        level: LevelDoc::Raid5,
        chunk_bytes: 65536,
        stripe_bytes: 131_072,
        block_size_bytes: 512,
        raw_bytes: 100_663_296,
        parity_bytes: 14_680_064,
        metadata_bytes: 53_477_376,
        unused_bytes: 3_145_728,
        usable_bytes: 29_360_128,
        arithmetic: vec!["usable = (3 - 1) x 14680064 = 29360128".into()],
        tolerates: 1,
        tolerance: "any 1 drive".into(),
        mkfs: mkfs(),
        drives: (0..3).map(drive).collect(),
    }
}

pub fn event(id: u64) -> EventDoc {
    EventDoc {
        id,
        at_unix_s: NOW_UNIX_S - 754,
        code: EventCode::MemberDropped.into(),
        severity: Severity::Warning,
        message: "group tank: slot 3 (/dev/nvme3n1) was dropped: a write failed (EIO)".into(),
        group: Some("tank".into()),
        disk: None,
        slot: Some(3),
        drive: Some("/dev/nvme3n1".into()),
        serial: Some(SERIAL.into()),
        health: Some(Health::Warning),
        problem: None,
        why: Some("a write failed (EIO)".into()),
        risk: None,
        next: Some("warpraid group replace tank --slot 3 NEW_DRIVE".into()),
    }
}

impl Control for Fake {
    async fn events(&self, of: EventsOf) -> Answer<EventListDoc> {
        let after = of.after.unwrap_or(40);
        if of.wait_s.is_some() && after >= 50 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let events: Vec<EventDoc> = (after + 1..=after + 2).filter(|id| *id <= 50).map(event).collect();
        let doc = EventListDoc { events, oldest_id: 1, newest_id: 50, more: false, left_out: 0 };
        self.answer(format!("events {of:?}"), doc)
    }
    async fn history(&self, of: HistoryOf) -> Answer<HistoryDoc> {
        let series = HistorySeriesDoc {
            kind: HistoryKind::Disk,
            group: Some("tank".into()),
            disk: Some("home".into()),
            at_unix_s: (NOW_UNIX_S - 3..NOW_UNIX_S).collect(),
            read_bytes_per_s: vec![0, 4096, 8192],
            write_bytes_per_s: vec![1 << 30, 3 << 30, 2 << 30],
            read_ops_per_s: vec![0, 1, 2],
            write_ops_per_s: vec![1024, 3072, 2048],
            read_p50_ns: vec![None, Some(12_000), Some(24_000)],
            read_p99_ns: vec![None, Some(12_000), Some(24_000)],
            write_p50_ns: vec![Some(900_000), Some(1_000_000), Some(1_200_000)],
            write_p99_ns: vec![Some(9_000_000), Some(10_000_000), Some(12_000_000)],
            used_bytes: vec![12_000_000_245_760; 3],
            capacity_bytes: vec![23_038_341_439_488; 3],
        };
        let doc = HistoryDoc {
            range: of.range,
            period_s: 1,
            samples_max: 300,
            now_unix_s: NOW_UNIX_S,
            memory_bytes_max: 1 << 24,
            left_out: 0,
            series: vec![series],
        };
        self.answer(format!("history {of:?}"), doc)
    }

    async fn alert_test(&self, how: AlertTest) -> Answer<ActionDoc> {
        self.act("alert test", "alerts", how.dry_run, &how)
    }
    async fn metrics(&self) -> String {
        "# TYPE warpraid_build_info gauge\nwarpraid_build_info 1\n".into()
    }
    async fn status(&self) -> Answer<StatusDoc> {
        let scene = *self.scene.lock().unwrap();
        let mut fast = group(Scene::Healthy);
        fast.name = "fast".into();
        fast.level = LevelDoc::Raid10;
        fast.members.truncate(4);
        fast.tolerates = 1;
        fast.disks.truncate(1);
        let groups = if scene == Scene::Empty { Vec::new() } else { vec![fast, group(scene)] };
        let problems: Vec<ProblemDoc> = groups.iter().flat_map(|group| group.problems.clone()).collect();
        let status = StatusDoc {
            health: groups.iter().map(|group| group.health).max().unwrap_or(Health::Ok),
            daemon: DaemonDoc {
                version: "0.1.0".into(),
                pid: 42,
                started_unix_s: NOW_UNIX_S - 86400,
                now_unix_s: NOW_UNIX_S,
                lanes: 2,
                memory_bytes: 1 << 28,
                upgraded: None,
                parity_kernel: "avx2".into(),
            },
            groups,
            problems,
        };
        self.calls.lock().unwrap().push("status".into());
        match self.refusal.lock().unwrap().clone() {
            Some(error) => Err(error),
            None => Ok(status.into()),
        }
    }
    async fn health(&self) -> Answer<HealthDoc> {
        let group = group(*self.scene.lock().unwrap());
        let summary = format!("1 group, {} to look at", group.problems.len());
        self.answer("health".into(), HealthDoc { health: group.health, summary, problems: group.problems })
    }
    async fn drives(&self) -> Answer<DriveListDoc> {
        self.answer("drives".into(), DriveListDoc { drives: vec![drive()] })
    }
    async fn drive(&self, drive: String) -> Answer<DriveDoc> {
        self.answer(format!("drive {drive}"), self::drive())
    }
    async fn drive_wipe(&self, drive: String, how: DriveWipe) -> Answer<ActionDoc> {
        self.act("drive wipe", &drive, how.dry_run, &how)
    }
    async fn drive_fail(&self, drive: String, how: DriveFail) -> Answer<ActionDoc> {
        self.act("drive fail", &drive, how.dry_run, &how)
    }
    async fn faults(&self) -> Answer<FaultListDoc> {
        let fault = FaultDoc {
            id: 3,
            drive: "/dev/nvme3n1".into(),
            what: FaultWhat::Slow,
            group: Some("tank".into()),
            slot: Some(3),
            delay_ns: 50_000_000,
            factor: 1,
            ranges: None,
            hits: 17,
            active: true,
            since_unix_s: NOW_UNIX_S - 60,
            until_unix_s: None,
        };
        let bad = FaultDoc {
            id: 4,
            what: FaultWhat::Bad,
            delay_ns: 0,
            ranges: Some(vec![RangeDoc { offset_bytes: 1 << 26, len_bytes: 4096 }]),
            group: None,
            slot: None,
            ..fault.clone()
        };
        self.answer("faults".into(), FaultListDoc { faults: vec![fault, bad] })
    }
    async fn fault_inject(&self, what: FaultInject) -> Answer<ActionDoc> {
        self.act("fault inject", &what.drive, what.dry_run, &what)
    }
    async fn fault_clear(&self, what: FaultClear) -> Answer<ActionDoc> {
        self.act("fault clear", "all", what.dry_run, &what)
    }
    async fn spares(&self) -> Answer<SpareListDoc> {
        let spare = SpareDoc {
            drive: "/dev/nvme9n1".into(),
            serial: Some("S4X9NF0M0000009".into()),
            size_bytes: 3_840_755_982_336,
            block_size_bytes: 512,
            numa_node: Some(1),
            group: None,
            group_uuid: None,
            state: SpareState::Ready,
            why: None,
        };
        let kept = SpareDoc {
            drive: "/dev/nvme10n1".into(),
            group: Some("tank".into()),
            group_uuid: Some(GROUP_UUID.into()),
            state: SpareState::Missing,
            why: Some("it is not there".into()),
            ..spare.clone()
        };
        self.answer("spares".into(), SpareListDoc { spares: vec![kept, spare] })
    }
    async fn upgrade(&self, how: Upgrade) -> Answer<ActionDoc> {
        self.act("upgrade", "daemon", how.dry_run, &how)
    }
    async fn spare_add(&self, what: SpareAdd) -> Answer<ActionDoc> {
        self.act("spare add", &what.drive, what.dry_run, &what)
    }
    async fn spare_remove(&self, what: SpareRemove) -> Answer<ActionDoc> {
        self.act("spare remove", &what.drive, what.dry_run, &what)
    }
    async fn group_plan(&self, what: GroupPlan) -> Answer<PlanDoc> {
        self.answer(format!("group plan {what:?}"), plan())
    }
    async fn group_create(&self, what: GroupCreate) -> Answer<ActionDoc> {
        // Long enough for a caller to go away in the middle.
        tokio::time::sleep(Duration::from_millis(if what.name == "slow" { 300 } else { 0 })).await;
        assert_ne!(what.name, "dies", "a verb that dies");
        self.act("group create", &what.name, what.dry_run, &what)
    }
    async fn groups(&self) -> Answer<GroupListDoc> {
        self.answer("groups".into(), GroupListDoc { groups: vec![group(*self.scene.lock().unwrap())] })
    }
    async fn group(&self, group: String) -> Answer<GroupDoc> {
        let scene = *self.scene.lock().unwrap();
        self.answer(format!("group {group}"), self::group(scene))
    }
    async fn group_stop(&self, group: String, how: GroupStop) -> Answer<ActionDoc> {
        self.act("group stop", &group, how.dry_run, &how)
    }
    async fn group_assemble(&self, what: GroupAssemble) -> Answer<ActionDoc> {
        self.act("group assemble", what.group.as_deref().unwrap_or("all"), what.dry_run, &what)
    }
    async fn group_delete(&self, group: String, how: GroupDelete) -> Answer<ActionDoc> {
        self.act("group delete", &group, how.dry_run, &how)
    }
    async fn group_undelete(&self, what: GroupUndelete) -> Answer<ActionDoc> {
        self.act("group undelete", &what.group, what.dry_run, &what)
    }
    async fn group_adopt(&self, what: GroupAdopt) -> Answer<ActionDoc> {
        self.act("group adopt", &what.name, what.dry_run, &what)
    }
    async fn group_release(&self, group: String, how: GroupRelease) -> Answer<ActionDoc> {
        self.act("group release", &group, how.dry_run, &how)
    }
    async fn group_replace(&self, group: String, how: GroupReplace) -> Answer<ActionDoc> {
        self.act("group replace", &group, how.dry_run, &how)
    }
    async fn group_readd(&self, group: String, how: GroupReadd) -> Answer<ActionDoc> {
        self.act("group readd", &group, how.dry_run, &how)
    }
    async fn group_scrub(&self, group: String, how: GroupScrub) -> Answer<ActionDoc> {
        self.act("group scrub", &group, how.dry_run, &how)
    }
    async fn scrub(&self, group: String) -> Answer<ScrubDoc> {
        self.answer(format!("scrub {group}"), scrub())
    }
    async fn group_set(&self, group: String, what: GroupSet) -> Answer<ActionDoc> {
        self.act("group set", &group, what.dry_run, &what)
    }
    async fn group_wait(&self, group: String, what: GroupWait) -> Answer<WaitDoc> {
        if group == "never" {
            std::future::pending::<()>().await;
        }
        let doc = WaitDoc { waited_ns: 61_000_000_000, group: self::group(Scene::Healthy) };
        self.answer(format!("group wait {group} {what:?}"), doc)
    }
    async fn disks(&self, group: Option<String>) -> Answer<DiskListDoc> {
        self.answer(format!("disks {group:?}"), DiskListDoc { disks: vec![disk()] })
    }
    async fn disk(&self, group: String, disk: String) -> Answer<DiskDoc> {
        self.answer(format!("disk {group}/{disk}"), self::disk())
    }
    async fn disk_create(&self, what: DiskCreate) -> Answer<ActionDoc> {
        self.act("disk create", &format!("{}/{}", what.group, what.name), what.dry_run, &what)
    }
    async fn disk_expose(&self, group: String, disk: String, how: DiskExpose) -> Answer<ActionDoc> {
        self.act("disk expose", &format!("{group}/{disk}"), how.dry_run, &how)
    }
    async fn disk_unexpose(&self, group: String, disk: String, how: DiskUnexpose) -> Answer<ActionDoc> {
        self.act("disk unexpose", &format!("{group}/{disk}"), how.dry_run, &how)
    }
    async fn disk_resize(&self, group: String, disk: String, how: DiskResize) -> Answer<ActionDoc> {
        self.act("disk resize", &format!("{group}/{disk}"), how.dry_run, &how)
    }
    async fn disk_delete(&self, group: String, disk: String, how: DiskDelete) -> Answer<ActionDoc> {
        self.act("disk delete", &format!("{group}/{disk}"), how.dry_run, &how)
    }
}
