//! From options and presets to a list of steps, and the checks that need no drive.

use benches::detail::Form;
use benches::load::steps::{Load, Step};
use benches::load::{Op, Pattern};
use server::control::{ApiError, ErrorCode};

use super::args::{LoadArgs, Preset};
use crate::units;

/// Bytes each thread moves when nothing is said.
const SIZE_BYTES: u64 = 256 << 20;
/// Largest transfer.
const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Most bytes in flight over all targets.
const FLIGHT_BYTES_MAX: u64 = 4 << 30;

/// What is measured when neither --read nor --write is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Usual {
    /// Only what destroys nothing.
    Read,
    /// Both: nobody else's data is there.
    Both,
}

fn usage(message: String) -> ApiError {
    ApiError::new(ErrorCode::UsageInvalid, message)
}

/// A time option in nanoseconds.
fn time_ns(text: Option<&String>, what: &str) -> Result<Option<u64>, ApiError> {
    text.map(|text| units::time(text, what).map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
        .transpose()
}

fn block_bytes(text: &str) -> Result<u32, ApiError> {
    let bytes = units::size(text, "block size", ErrorCode::UsageInvalid)?;
    let fits = bytes.is_multiple_of(512) && bytes <= BLOCK_BYTES_MAX;
    fits.then(|| u32::try_from(bytes).ok()).flatten().ok_or_else(|| {
        usage(format!("the block size \"{text}\" is not a multiple of 512 up to 16M"))
            .hint("4K, 512K and 1M are usual")
    })
}

struct Shape {
    form: Form,
    threads: u32,
    queue_depth: u32,
    time_ns: Option<u64>,
    ramp_ns: u64,
}

fn shape(preset: Preset) -> Shape {
    let shape = |form, threads, queue_depth| Shape { form, threads, queue_depth, time_ns: None, ramp_ns: 0 };
    match preset {
        Preset::Storagebench => shape(Form::Storagebench, 16, 1),
        Preset::Ior => shape(Form::Ior, 8, 1),
        Preset::Iozone => shape(Form::Iozone, 8, 1),
        Preset::Graid => {
            Shape { time_ns: Some(60_000_000_000), ramp_ns: 10_000_000_000, ..shape(Form::Fio, 1, 64) }
        }
    }
}

const TESTS: [(Op, Pattern, &str); 6] = [
    (Op::Write, Pattern::Sequential, "initial writers"),
    (Op::Write, Pattern::Sequential, "rewriters"),
    (Op::Read, Pattern::Sequential, "readers"),
    (Op::Read, Pattern::Sequential, "re-readers"),
    (Op::Read, Pattern::Random, "random readers"),
    (Op::Write, Pattern::Random, "random writers"),
];

/// The steps of a preset, both ways; `pattern` and `block` are what the options say.
fn steps(preset: Preset, form: Form, pattern: Option<Pattern>, block: Option<u32>) -> Vec<Step> {
    let step = |op: Op, usual: Pattern, usual_block: u32| Step {
        op,
        pattern: pattern.unwrap_or(usual),
        block_bytes: block.unwrap_or(usual_block),
        form,
        test: op.name(),
    };
    let both = |usual, usual_block| [Op::Write, Op::Read].map(|op| step(op, usual, usual_block)).to_vec();
    match preset {
        Preset::Storagebench => both(Pattern::Sequential, 512 << 10),
        Preset::Ior => both(Pattern::Sequential, 1 << 20),
        Preset::Graid => {
            let mut all = both(Pattern::Random, 4 << 10);
            all.extend(both(Pattern::Sequential, 1 << 20));
            all
        }
        Preset::Iozone => {
            let records = block.map_or_else(|| vec![4 << 10, 64 << 10, 1 << 20], |block| vec![block]);
            records
                .into_iter()
                .flat_map(|block_bytes| {
                    TESTS.map(|(op, pattern, test)| Step { op, pattern, block_bytes, form, test })
                })
                .collect()
        }
    }
}

/// The load that was asked for, on `targets` targets.
pub(crate) fn load(args: &LoadArgs, default: Preset, usual: Usual, targets: usize) -> Result<Load, ApiError> {
    let preset = args.preset.unwrap_or(default);
    let shape = shape(preset);
    let block = args.block_size.as_deref().map(block_bytes).transpose()?;
    let pattern = args.random.then_some(Pattern::Random);
    if args.random && preset == Preset::Iozone {
        return Err(usage("--preset iozone has an order of its own: --random does not fit".into())
            .hint("leave --random out, or take --preset storagebench"));
    }
    let (read, write) = match (args.read, args.write) {
        (false, false) => (true, usual == Usual::Both),
        asked => asked,
    };
    let mut steps = steps(preset, shape.form, pattern, block);
    steps.retain(|step| if step.op == Op::Read { read } else { write });
    let time = time_ns(args.time.as_ref(), "time")?;
    let size =
        args.size.as_deref().map(|text| units::size(text, "size", ErrorCode::UsageInvalid)).transpose()?;
    let load = Load {
        steps,
        threads: args.threads.unwrap_or(shape.threads),
        queue_depth: args.queue_depth.unwrap_or(shape.queue_depth),
        // With a size and no time of one's own, every region is moved once.
        time_ns: if size.is_some() { time } else { time.or(shape.time_ns) },
        ramp_ns: time_ns(args.ramp.as_ref(), "ramp")?.unwrap_or(if time.is_some() {
            0
        } else {
            shape.ramp_ns
        }),
        size_bytes: Some(size.unwrap_or(SIZE_BYTES)),
        verify: !args.no_verify,
        lanes: args.lanes,
    };
    check(&load, targets)?;
    Ok(load)
}

fn check(load: &Load, targets: usize) -> Result<(), ApiError> {
    let block = load.steps.iter().map(|step| u64::from(step.block_bytes)).max().unwrap_or(0);
    let threads = u64::from(load.threads) * u64::try_from(targets).unwrap_or(u64::MAX);
    let in_flight = block.saturating_mul(u64::from(load.queue_depth)).saturating_mul(threads);
    if in_flight > FLIGHT_BYTES_MAX {
        return Err(usage(format!(
            "{} in flight (targets x threads x queue depth x block size) are more than 4 GiB",
            units::human(in_flight)
        ))
        .hint("take fewer threads or a smaller queue depth"));
    }
    if load.size_bytes.is_some_and(|size| size < block) {
        return Err(usage(format!("the size is less than one transfer of {}", units::human(block))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn parsed(words: &str) -> Result<Load, ApiError> {
        let words = Words::try_parse_from(core::iter::once("x").chain(words.split_whitespace())).unwrap();
        load(&words.load, Preset::Storagebench, Usual::Read, 2)
    }

    fn shapes(load: &Load) -> Vec<(Op, Pattern, u32)> {
        load.steps.iter().map(|step| (step.op, step.pattern, step.block_bytes)).collect()
    }

    #[test]
    fn nothing_asked_for_reads_as_storagebench_does() {
        let load = parsed("").unwrap();
        assert_eq!(shapes(&load), [(Op::Read, Pattern::Sequential, 512 << 10)]);
        assert_eq!((load.threads, load.queue_depth, load.size_bytes), (16, 1, Some(SIZE_BYTES)));
        assert!(load.verify && !load.writes());
    }

    #[test]
    fn presets_are_those_of_their_makers() {
        let graid = parsed("--preset graid --read --write").unwrap();
        assert_eq!(
            (graid.queue_depth, graid.time_ns, graid.ramp_ns),
            (64, Some(60_000_000_000), 10_000_000_000)
        );
        assert_eq!(graid.steps.len(), 4);
        assert_eq!(shapes(&graid)[0], (Op::Write, Pattern::Random, 4096));
        let iozone = parsed("--preset iozone --write --read").unwrap();
        assert_eq!(iozone.steps.len(), 18);
        assert_eq!(parsed("--preset iozone --block-size 64K --read --write").unwrap().steps.len(), 6);
        let ior = parsed("--preset ior --write").unwrap();
        assert_eq!(shapes(&ior), [(Op::Write, Pattern::Sequential, 1 << 20)]);
    }

    #[test]
    fn options_change_a_preset() {
        let load =
            parsed("--preset graid --block-size 8K --queue-depth 3 --threads 5 --size 1G --random").unwrap();
        assert!(load.steps.iter().all(|step| step.block_bytes == 8192 && step.pattern == Pattern::Random));
        assert_eq!((load.queue_depth, load.threads, load.time_ns), (3, 5, None), "a size is moved once");
        let load = parsed("--time 2s --ramp 1s").unwrap();
        assert_eq!((load.time_ns, load.ramp_ns), (Some(2_000_000_000), 1_000_000_000));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "--block-size 1000",
            "--block-size 1G",
            "--size 4K",
            "--time soon",
            "--size lots",
            "--block-size 16M --threads 256 --queue-depth 1024",
            "--preset iozone --random",
        ] {
            assert_eq!(parsed(words).unwrap_err().code, ErrorCode::UsageInvalid, "{words}");
        }
    }
}
