//! What state a group is in, how bad that is, and what to type: HEALTH, WHY, RISK, NEXT, CODE.
//!
//! Pure functions from what the engine reports to the documents of the API, so that the status line, the health exit code
//! and every group document agree. Redundancy is reported as it is, not as it will be: a region whose parity is not made
//! yet counts as unprotected (CASES SL-07).

use raid_core::geometry::{Geometry, Level};
use raid_core::units::Slot;

use super::words;
use crate::control::ProblemCode;
use crate::control::model::{GroupState, Health, MemberState, ProblemDoc};

/// Whether the drive of a member that is out could come back as it is, by a re-add.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Comeback {
    /// Nobody knows, or it is not there.
    #[default]
    Unknown,
    /// It is there and may.
    Possible,
    /// It is there and may not: why.
    Impossible(String),
}

/// One slot, as far as health is concerned.
#[derive(Clone, Debug)]
pub struct MemberFacts {
    /// What it is good for.
    pub state: MemberState,
    /// Path of its drive (or of the one it had).
    pub drive: Option<String>,
    /// Serial of that drive.
    pub serial: Option<String>,
    /// Why it is not in sync, in words.
    pub why: Option<String>,
    /// Since when.
    pub since_unix_s: Option<u64>,
    /// Whether it was dropped because the file system it lies on has no room.
    pub is_out_of_room: bool,
    /// Whether its file has no name any more: what lies in it is gone when the daemon lets go of it.
    pub is_unlinked: bool,
    /// Whether it could come back.
    pub comeback: Comeback,
}

/// A group, as far as health is concerned.
#[derive(Clone, Debug)]
pub struct GroupFacts {
    /// Name.
    pub name: String,
    /// Shape.
    pub geometry: Geometry,
    /// Slots.
    pub members: Vec<MemberFacts>,
    /// Bytes whose redundancy is not made yet.
    pub unsynced_bytes: u64,
    /// Whether it was once started by force.
    pub forced: bool,
    /// Whether this host could not store what it must remember of the group (SAFETY M4).
    pub is_forgotten: bool,
}

/// The verdict.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// State of the group.
    pub state: GroupState,
    /// How bad.
    pub health: Health,
    /// How many more drives it can lose, whichever they are.
    pub tolerates: u8,
    /// What is not as it should be, worst first.
    pub problems: Vec<ProblemDoc>,
}

/// How many more drives the level can lose, whichever they are, given which slots are in sync everywhere.
fn tolerates(geometry: &Geometry, in_sync: impl Fn(u8) -> bool, is_synced: bool) -> u8 {
    if !geometry.is_readable(|slot| in_sync(slot.0)) {
        return 0;
    }
    let n = geometry.members();
    let lost = u8::try_from((0..n).filter(|&slot| !in_sync(slot)).count()).unwrap_or(u8::MAX);
    match geometry.level() {
        Level::Raid0 => 0,
        // What is not synced yet may differ between copies or from its parity: no further loss is safe there.
        _ if !is_synced => 0,
        Level::Raid1 => n - lost - 1,
        Level::Raid5 | Level::Raid6 => geometry.level().parities() - lost,
        Level::Raid10 => u8::from(lost == 0),
    }
}

/// `whole_pairs`: pairs of a RAID 10 that can still lose a drive.
fn risk(geometry: &Geometry, tolerates: u8, whole_pairs: usize, state: GroupState) -> String {
    match (state, geometry.level()) {
        (GroupState::Offline, _) => "blocks of the missing drives cannot be read".into(),
        (_, Level::Raid10) if tolerates == 0 && whole_pairs > 0 => format!(
            "can lose 0 more drives of a pair that is short of one; {whole_pairs} other pair{} can still lose one",
            if whole_pairs == 1 { "" } else { "s" }
        ),
        _ if tolerates == 0 => "can lose 0 more drives: the next failure loses data".into(),
        _ => format!("can lose {tolerates} more drive{}", if tolerates == 1 { "" } else { "s" }),
    }
}

/// State, health and problems of a running group.
#[must_use]
pub fn judge(facts: &GroupFacts) -> Verdict {
    let state_of = |slot: u8| facts.members[usize::from(slot)].state;
    let in_sync = |slot: u8| state_of(slot) == MemberState::InSync;
    let is_synced = facts.unsynced_bytes == 0;
    let tolerates = tolerates(&facts.geometry, in_sync, is_synced);
    let any = |wanted: MemberState| facts.members.iter().any(|member| member.state == wanted);
    let state = if !facts.geometry.is_readable(|slot| in_sync(slot.0)) {
        GroupState::Offline
    } else if any(MemberState::Rebuilding) {
        GroupState::Rebuilding
    } else if facts.members.iter().any(|member| member.state != MemberState::InSync) {
        GroupState::Degraded
    } else if !is_synced {
        GroupState::Syncing
    } else {
        GroupState::Healthy
    };
    let lost_health = match state {
        GroupState::Offline => Health::Critical,
        _ if tolerates == 0 => Health::Critical,
        _ => Health::Warning,
    };
    // Pairs that can still lose a drive; other levels have none.
    let pairs = if facts.geometry.level() == Level::Raid10 { facts.geometry.members() / 2 } else { 0 };
    let is_whole = |pair: &u8| is_synced && in_sync(pair * 2) && in_sync(pair * 2 + 1);
    let whole_pairs = (0..pairs).filter(is_whole).count();
    let risk = risk(&facts.geometry, tolerates, whole_pairs, state);
    let mut problems: Vec<ProblemDoc> = (0..facts.geometry.members())
        .filter(|&slot| !in_sync(slot))
        .map(|slot| member_problem(facts, Slot(slot), state, lost_health, &risk))
        .collect();
    problems.extend(unlinked_problems(facts, tolerates));
    if !is_synced {
        problems.push(group_problem(
            facts,
            ProblemCode::GroupSyncing,
            Health::Warning,
            "redundancy is still being made",
            "until it is done, a drive failure can lose blocks in the part that is not synced",
            format!("warpraid group wait {} --for synced", facts.name),
        ));
    }
    if facts.forced {
        problems.push(group_problem(
            facts,
            ProblemCode::GroupForced,
            Health::Warning,
            "the group was once started by force while dirty or incomplete",
            "blocks written just before the crash may be wrong",
            format!("warpraid group show {}", facts.name),
        ));
    }
    if facts.is_forgotten {
        problems.push(group_problem(
            facts,
            ProblemCode::GroupWitness,
            Health::Warning,
            "the state folder could not be written: this host does not remember the newest epoch of the group",
            "after a restart, half of the group's drives may start alone with older data",
            "df -h   (make room for, or repair, the folder given as --state-dir)".to_owned(),
        ));
    }
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.health));
    let health = problems.first().map_or(Health::Ok, |worst| worst.health);
    Verdict { state, health, tolerates, problems }
}

/// Members whose files have no name any more. Nothing is lost while the daemon holds them, and all of them are when it
/// lets go: no more than a warning while the group can do without them.
fn unlinked_problems(facts: &GroupFacts, tolerates: u8) -> Vec<ProblemDoc> {
    let name = &facts.name;
    let unlinked: Vec<(u8, &MemberFacts)> =
        (0u8..).zip(&facts.members).filter(|(_, member)| member.is_unlinked).collect();
    let is_spared = unlinked.len() <= usize::from(tolerates);
    let risk = if is_spared {
        "the member is lost when the daemon stops; the group can do without it"
    } else {
        "data of the group is lost when the daemon stops: do not stop it before the data is elsewhere"
    };
    let problem = |(slot, member): (u8, &MemberFacts)| {
        let drive = member.drive.as_deref().unwrap_or("unknown drive");
        ProblemDoc {
            code: ProblemCode::MemberUnlinked.into(),
            health: if is_spared { Health::Warning } else { Health::Critical },
            group: Some(name.clone()),
            slot: Some(slot),
            drive: member.drive.clone(),
            serial: member.serial.clone(),
            since_unix_s: None,
            why: format!("slot {slot}: the file {drive} was deleted or replaced while it is a member"),
            risk: risk.into(),
            next: if is_spared {
                format!(
                    "warpraid drive fail {}   (then: warpraid group replace {name} --slot {slot} NEW_DRIVE)",
                    words::quoted(drive)
                )
            } else {
                format!("warpraid group show {name}   (copy its disks elsewhere: nbdcopy URI FILE)")
            },
        }
    };
    unlinked.into_iter().map(problem).collect()
}

fn group_problem(
    facts: &GroupFacts,
    code: ProblemCode,
    health: Health,
    why: &str,
    risk: &str,
    next: String,
) -> ProblemDoc {
    ProblemDoc {
        code: code.into(),
        health,
        group: Some(facts.name.clone()),
        slot: None,
        drive: None,
        serial: None,
        since_unix_s: None,
        why: why.into(),
        risk: risk.into(),
        next,
    }
}

/// The cause with what is known of the drive now, and the command that makes the slot whole: a re-add where the old drive
/// may come back, else a replacement.
fn way_on(name: &str, slot: Slot, member: &MemberFacts, cause: String) -> (String, String) {
    let replace = format!("warpraid group replace {name} --slot {slot} NEW_DRIVE");
    match (&member.comeback, &member.drive) {
        (Comeback::Possible, Some(drive)) => {
            let readd = format!("warpraid group readd {name} {}", words::quoted(drive));
            (format!("{cause}; its drive is there and can come back"), readd)
        }
        (Comeback::Impossible(why), _) => {
            (format!("{cause}; its drive is there and cannot come back: {why}"), replace)
        }
        _ => (cause, replace),
    }
}

fn member_problem(
    facts: &GroupFacts,
    slot: Slot,
    state: GroupState,
    health: Health,
    risk: &str,
) -> ProblemDoc {
    let member = &facts.members[slot.index()];
    let name = &facts.name;
    let drive = member.drive.as_deref().unwrap_or("unknown drive");
    let cause = member.why.clone().unwrap_or_else(|| words::why_dropped(None, None, false));
    let (cause, way_on) = way_on(name, slot, member, cause);
    let (code, why, next) = match member.state {
        MemberState::Rebuilding => (
            ProblemCode::GroupRebuilding,
            format!("slot {slot} ({drive}) is being rebuilt"),
            format!("warpraid group wait {name} --for rebuilt"),
        ),
        MemberState::Conflict => (
            ProblemCode::MemberConflict,
            format!("slot {slot} ({drive}) holds another history of the group; it was left untouched"),
            format!("warpraid examine {drive}"),
        ),
        MemberState::Stale => {
            (ProblemCode::MemberStale, format!("slot {slot} ({drive}) is out of date: {cause}"), way_on)
        }
        _ if state == GroupState::Offline => (
            ProblemCode::GroupOffline,
            format!("slot {slot} ({drive}): {cause}"),
            format!(
                "warpraid group stop {name}   (then, with the missing drives back: warpraid group assemble {name})"
            ),
        ),
        _ if member.is_out_of_room => (
            ProblemCode::GroupDegraded,
            format!("slot {slot} ({drive}): {cause}"),
            format!(
                "df -h {}   (make room, then: warpraid drive wipe {}, warpraid group replace {name} --slot {slot} {})",
                words::folder_of(drive),
                words::quoted(drive),
                words::quoted(drive)
            ),
        ),
        _ => (ProblemCode::GroupDegraded, format!("slot {slot} ({drive}): {cause}"), way_on),
    };
    ProblemDoc {
        code: code.into(),
        health,
        group: Some(name.clone()),
        slot: Some(slot.0),
        drive: member.drive.clone(),
        serial: member.serial.clone(),
        since_unix_s: member.since_unix_s,
        why,
        risk: risk.into(),
        next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(level: Level, states: &[MemberState]) -> GroupFacts {
        let chunk = if level == Level::Raid1 { 0 } else { 65536 };
        let n = u8::try_from(states.len()).unwrap();
        GroupFacts {
            name: "tank".into(),
            geometry: Geometry::new(level, n, chunk, 1 << 30).unwrap(),
            members: states
                .iter()
                .map(|&state| MemberFacts {
                    state,
                    drive: None,
                    serial: None,
                    why: None,
                    since_unix_s: None,
                    is_out_of_room: false,
                    is_unlinked: false,
                    comeback: Comeback::Unknown,
                })
                .collect(),
            unsynced_bytes: 0,
            forced: false,
            is_forgotten: false,
        }
    }

    const S: MemberState = MemberState::InSync;
    const F: MemberState = MemberState::Failed;
    const R: MemberState = MemberState::Rebuilding;

    #[test]
    fn state_health_and_tolerance_agree_for_every_level() {
        let cases = [
            (Level::Raid0, vec![S, S], GroupState::Healthy, Health::Ok, 0),
            (Level::Raid0, vec![S, F], GroupState::Offline, Health::Critical, 0),
            (Level::Raid1, vec![S, S, S], GroupState::Healthy, Health::Ok, 2),
            (Level::Raid1, vec![S, F, S], GroupState::Degraded, Health::Warning, 1),
            (Level::Raid1, vec![F, F, S], GroupState::Degraded, Health::Critical, 0),
            (Level::Raid5, vec![S, S, S], GroupState::Healthy, Health::Ok, 1),
            (Level::Raid5, vec![S, R, S], GroupState::Rebuilding, Health::Critical, 0),
            (Level::Raid5, vec![F, R, S], GroupState::Offline, Health::Critical, 0),
            (Level::Raid6, vec![S, F, S, S], GroupState::Degraded, Health::Warning, 1),
            (Level::Raid6, vec![S, F, F, S], GroupState::Degraded, Health::Critical, 0),
            (Level::Raid10, vec![S, F, S, S], GroupState::Degraded, Health::Critical, 0),
            (Level::Raid10, vec![F, F, S, S], GroupState::Offline, Health::Critical, 0),
        ];
        for (level, states, state, health, tolerates) in cases {
            let verdict = judge(&facts(level, &states));
            let got = (verdict.state, verdict.health, verdict.tolerates);
            assert_eq!(got, (state, health, tolerates), "{level} {states:?}");
            assert_eq!(verdict.problems.is_empty(), health == Health::Ok);
        }
    }

    #[test]
    fn sl_07_an_unsynced_group_does_not_claim_redundancy() {
        let mut group = facts(Level::Raid6, &[S, S, S, S]);
        group.unsynced_bytes = 1;
        let verdict = judge(&group);
        assert_eq!((verdict.state, verdict.health), (GroupState::Syncing, Health::Warning));
        assert_eq!(verdict.tolerates, 0);
        assert_eq!(verdict.problems[0].code, "group.syncing");
    }

    #[test]
    fn a_drive_that_can_come_back_is_taken_back_not_replaced() {
        let mut group = facts(Level::Raid5, &[S, F, S]);
        group.members[1].drive = Some("/dev/x y".into());
        let told = |group: &GroupFacts| {
            let problem = judge(group).problems.remove(0);
            (problem.next, problem.why)
        };
        assert_eq!(told(&group).0, "warpraid group replace tank --slot 1 NEW_DRIVE");
        group.members[1].comeback = Comeback::Possible;
        let (next, why) = told(&group);
        assert_eq!(next, "warpraid group readd tank '/dev/x y'");
        assert!(why.contains("can come back"), "{why}");
        group.members[1].comeback = Comeback::Impossible("it was seen cut short".into());
        let (next, why) = told(&group);
        assert_eq!(next, "warpraid group replace tank --slot 1 NEW_DRIVE");
        assert!(why.contains("cannot come back: it was seen cut short"), "{why}");
        // Nobody can be resynced in a group that is offline.
        let mut group = facts(Level::Raid5, &[S, F, F]);
        group.members[1].drive = Some("/dev/x".into());
        group.members[1].comeback = Comeback::Possible;
        assert!(told(&group).0.contains("group stop tank"));
    }

    #[test]
    fn raid_10_says_which_pairs_can_lose_a_drive() {
        let risk = |states: &[MemberState]| judge(&facts(Level::Raid10, states)).problems[0].risk.clone();
        assert!(risk(&[S, F, S, S]).contains("1 other pair can"), "{}", risk(&[S, F, S, S]));
        assert!(risk(&[S, F, S, S, S, S]).contains("2 other pairs can"));
        // Every pair is short of one: there are no others.
        assert_eq!(risk(&[S, F, F, S]), "can lose 0 more drives: the next failure loses data");
    }

    #[test]
    fn a_deleted_file_is_a_warning_while_the_group_can_do_without_it() {
        let mut group = facts(Level::Raid5, &[S, S, S]);
        group.members[1].is_unlinked = true;
        group.members[1].drive = Some("/a b/d1".into());
        let verdict = judge(&group);
        assert_eq!((verdict.state, verdict.health), (GroupState::Healthy, Health::Warning));
        let problem = &verdict.problems[0];
        assert_eq!((problem.code.as_str(), problem.slot), ("member.unlinked", Some(1)));
        assert!(problem.why.contains("/a b/d1"), "{}", problem.why);
        assert!(problem.next.starts_with("warpraid drive fail '/a b/d1'"), "{}", problem.next);
        group.members[2].is_unlinked = true;
        assert_eq!(judge(&group).health, Health::Critical);
    }

    #[test]
    fn the_worst_problem_comes_first_and_names_one_command() {
        let mut group = facts(Level::Raid6, &[S, F, F, S]);
        group.forced = true;
        let verdict = judge(&group);
        assert_eq!(verdict.problems[0].health, Health::Critical);
        assert_eq!(verdict.problems[0].next, "warpraid group replace tank --slot 1 NEW_DRIVE");
        assert_eq!(verdict.problems.last().unwrap().code, "group.forced");
    }
}
