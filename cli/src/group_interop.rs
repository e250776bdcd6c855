//! `group adopt|release`: arrays of Linux md taken over, and groups given back.

use clap::Args;
use server::control::model::{ActionDoc, GroupDoc};
use server::control::names;
use server::control::request::{GroupAdopt, GroupRelease};
use server::control::routes::Op;

use crate::args::Writes;
use crate::client::Client;
use crate::confirm;
use crate::group::{done, paths, show};
use crate::output::{Ended, Output, decoded};
use crate::render::action;

/// What an adopt is told.
#[derive(Args, Debug)]
pub(crate) struct AdoptArgs {
    /// The name it gets here; md's own name stays in its superblock
    #[arg(long)]
    name: String,
    /// All members of the array, in any order: paths or serials
    #[arg(value_name = "DRIVE", required = true)]
    drives: Vec<String>,
    #[command(flatten)]
    writes: Writes,
}

/// What a release is told.
#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// Name or uuid
    group: String,
    #[command(flatten)]
    writes: Writes,
}

pub(crate) fn adopt(args: &AdoptArgs, client: &Client, output: &Output) -> Ended {
    names::group_name(&args.name)?;
    let mut what = GroupAdopt {
        name: args.name.clone(),
        drives: paths(&args.drives)?,
        yes: args.writes.yes,
        dry_run: args.writes.dry_run,
    };
    if confirm::must_ask(output, &format!("adopting md's array as {}", args.name), args.writes, None)? {
        let dry = GroupAdopt { dry_run: true, ..what.clone() };
        let plan: ActionDoc = decoded(&client.change(Op::GroupAdopt, &[], &dry)?)?;
        confirm::typed(&action(&plan, ""), &args.name)?;
        what.yes = true;
    }
    output.document(&client.change(Op::GroupAdopt, &[], &what)?, done)
}

pub(crate) fn release(args: &ReleaseArgs, client: &Client, output: &Output) -> Ended {
    let group = args.group.as_str();
    names::group_ref(group)?;
    let mut how = GroupRelease { yes: args.writes.yes, dry_run: args.writes.dry_run };
    if confirm::must_ask(output, &format!("releasing group {group} to md"), args.writes, None)? {
        let found: GroupDoc = decoded(&client.look(Op::Group, &[("group", group)], &())?)?;
        confirm::typed(&format!("{}\nIt will be stopped and be md's.", show(&found)), &found.name)?;
        how.yes = true;
    }
    output.document(&client.change(Op::GroupRelease, &[("group", group)], &how)?, done)
}
