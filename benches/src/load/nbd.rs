//! A pass over NBD disks: a thread and a connection per region, with up to `queue_depth` requests in flight on it.

use std::collections::HashMap;
use std::sync::{Arc, Barrier};

use raid_core::units::{u32_of, u64_of, usize_of_u32};
use stamps::nbd::{Client, Command, Cookie, Error, Options};

use super::Op;
use super::meter::Meter;
use super::session::{Region, SessionError, Target, Work};
use super::walk::Walk;
use crate::clock::wall_ns;

/// A region and its connection.
struct Stream<'a> {
    work: &'a Work,
    region: &'a Region,
    client: &'a mut Client,
    meter: Meter,
    /// Place and start of what is in flight.
    waiting: HashMap<Cookie, (u64, u64)>,
    buffer: Vec<u8>,
}

impl Stream<'_> {
    fn at(&self, place: u64) -> u64 {
        self.region.start + place * u64::from(self.work.block_bytes)
    }

    fn submit(&mut self, place: u64) -> Result<(), Error> {
        let at = self.at(place);
        let command = match self.work.writing(self.region.target) {
            Some(cells) => {
                cells.stamp(at, &mut self.buffer);
                Command::write(at, self.buffer.clone())
            }
            None => Command::read(at, self.work.block_bytes),
        };
        let began_ns = wall_ns();
        let cookie = self.client.submit(command)?;
        self.waiting.insert(cookie, (place, began_ns));
        Ok(())
    }

    fn reap(&mut self) -> Result<(), Error> {
        let reply = self.client.wait()?;
        let ended_ns = wall_ns();
        let (place, began_ns) = self.waiting.remove(&reply.cookie).expect("the client knows its cookies");
        let at = self.at(place);
        if let Some(cells) = self.work.writing(self.region.target) {
            self.work.wrote(self.region, place, cells, reply.result.is_ok());
        }
        match reply.result {
            Ok(data) => {
                if self.work.pass.op == Op::Read
                    && let Some(wrong) = self.work.compare(self.region, place, at, &data)
                {
                    self.meter.compared(wrong);
                }
                if let Some(bytes) = self.meter.done(began_ns, ended_ns, u64::from(self.work.block_bytes)) {
                    self.work.control.add(bytes);
                }
            }
            Err(error) => {
                self.meter.failed(format!("{} at byte {at}: {error}", self.work.pass.op.name()), false)
            }
        }
        Ok(())
    }

    fn all(&mut self, walk: &mut Walk) -> Result<(), Error> {
        let depth = usize_of_u32(self.work.pass.queue_depth);
        loop {
            let is_over = self.work.control.is_stopped() || self.meter.gave_up();
            let next = if is_over { None } else { walk.next(wall_ns()) };
            let Some(place) = next else { break };
            if self.work.skips(self.region, place) {
                continue;
            }
            while self.waiting.len() >= depth {
                self.reap()?;
            }
            self.submit(place)?;
        }
        while !self.waiting.is_empty() {
            self.reap()?;
        }
        if self.work.pass.op == Op::Write {
            let began_ns = wall_ns();
            self.client.flush()?;
            self.meter.flush_ns = wall_ns() - began_ns;
        }
        Ok(())
    }
}

fn on_thread(work: &Work, region: &Region, client: &mut Client, start: &Barrier) -> Meter {
    start.wait();
    let from_ns = wall_ns() + work.pass.ramp_ns;
    let deadline_ns = work.pass.time_ns.map(|time_ns| from_ns + time_ns);
    let mut walk = Walk::new(work.pass.pattern, region.places, deadline_ns, region.seed ^ (work.seed << 20));
    let mut buffer = vec![0; usize_of_u32(work.block_bytes)];
    if let Some(cells) = work.writing(region.target) {
        cells.prepare(&mut buffer);
    }
    let meter = Meter::new(from_ns);
    let mut stream = Stream { work, region, client, meter, waiting: HashMap::new(), buffer };
    if let Err(error) = stream.all(&mut walk) {
        // The connection is of no use any more, and what became of the writes in flight is not known.
        stream.meter.failed(format!("{}: {error}", work.pass.op.name()), true);
        if let Some(cells) = work.writing(region.target) {
            for (place, _) in stream.waiting.values() {
                work.wrote(region, *place, cells, false);
            }
        }
    }
    work.control.add(stream.meter.rest_bytes());
    stream.meter
}

fn connected(target: &Target) -> Result<Client, SessionError> {
    let Target::Nbd { endpoint, export, .. } = target else { unreachable!("only NBD disks come here") };
    Client::connect(endpoint, &Options::export(export))
        .map_err(|error| SessionError::Nbd { name: target.name(), reason: error.to_string() })
}

/// Runs a pass, one thread a region. Gives the meter of each region, and how many threads there were.
pub(super) fn run(work: &Arc<Work>) -> Result<(Vec<Meter>, u32), SessionError> {
    let mut clients = Vec::new();
    for region in &work.regions {
        clients.push(connected(&work.targets[region.target])?);
    }
    let start = Barrier::new(work.regions.len());
    let meters: Result<Vec<Meter>, SessionError> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (region, client) in work.regions.iter().zip(&mut clients) {
            let start = &start;
            threads.push(scope.spawn(move || on_thread(work, region, client, start)));
        }
        threads.into_iter().map(|thread| thread.join().map_err(|_| SessionError::Died)).collect()
    });
    let meters = meters?;
    for client in clients {
        // The pass is over; a server that does not say good-bye changes nothing.
        drop(client.disconnect());
    }
    Ok((meters, u32_of(u64_of(work.regions.len()))))
}
