//! `spare add|remove|list`.

use server::control::model::{ActionDoc, SpareListDoc};
use server::control::request::{SpareAdd, SpareRemove};
use server::control::routes::Op;

use crate::args::SpareVerb;
use crate::client::Client;
use crate::output::{Ended, Output};
use crate::render::{action, header, or_dash, table, word};
use crate::units::{self, human};

pub(crate) fn run(verb: &SpareVerb, client: &Client, output: &Output) -> Ended {
    match verb {
        SpareVerb::List => output.document(&client.look(Op::Spares, &[], &())?, list),
        SpareVerb::Add { drive, group, writes, .. } => {
            if let Some(group) = group {
                server::control::names::group_ref(group)?;
            }
            let what =
                SpareAdd { drive: units::drive(drive)?, group: group.clone(), dry_run: writes.dry_run };
            let answer = client.change(Op::SpareAdd, &[], &what)?;
            output.document(&answer, |done: &ActionDoc| action(done, ""))
        }
        SpareVerb::Remove { drive, writes } => {
            let what = SpareRemove { drive: units::drive(drive)?, dry_run: writes.dry_run };
            let answer = client.change(Op::SpareRemove, &[], &what)?;
            output.document(&answer, |done: &ActionDoc| action(done, ""))
        }
    }
}

fn list(spares: &SpareListDoc) -> String {
    if spares.spares.is_empty() {
        return "no spares\n".into();
    }
    let mut rows = vec![header(&["DRIVE", "STATE", "FOR", "SIZE", "BLOCK", "SERIAL", "WHY"])];
    rows.extend(spares.spares.iter().map(|spare| {
        vec![
            spare.drive.clone(),
            word(&spare.state),
            spare.group.clone().or_else(|| spare.group_uuid.clone()).unwrap_or_else(|| "any group".into()),
            human(spare.size_bytes),
            spare.block_size_bytes.to_string(),
            or_dash(spare.serial.as_ref()),
            spare.why.clone().unwrap_or_default(),
        ]
    }));
    table(&rows)
}
