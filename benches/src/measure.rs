//! Interleaved sampling: every case is sampled once per round, so that a slow phase of the machine hits all alike.

/// One thing to be measured: its name, and a closure that runs it once and gives one sample.
pub struct Bench<'a> {
    name: String,
    run: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Bench<'a> {
    /// A bench of this name.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> f64 + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Runs every bench once to warm up, then `rounds` times in turn. Gives name and samples of each, in order.
pub fn interleave(mut benches: Vec<Bench<'_>>, rounds: usize) -> Vec<(String, Vec<f64>)> {
    for bench in &mut benches {
        (bench.run)();
    }
    let mut samples = vec![Vec::with_capacity(rounds); benches.len()];
    for _ in 0..rounds {
        for (bench, samples) in benches.iter_mut().zip(&mut samples) {
            samples.push((bench.run)());
        }
    }
    benches.into_iter().map(|bench| bench.name).zip(samples).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn cases_take_turns_after_one_warm_up_each() {
        let order = RefCell::new(Vec::new());
        let bench = |name: &'static str| {
            let order = &order;
            Bench::new(name, move || {
                order.borrow_mut().push(name);
                f64::from(u32::try_from(order.borrow().len()).unwrap())
            })
        };
        let results = interleave(vec![bench("a"), bench("b")], 2);
        assert_eq!(results, [("a".to_owned(), vec![3.0, 5.0]), ("b".to_owned(), vec![4.0, 6.0])]);
        assert_eq!(*order.borrow(), ["a", "b", "a", "b", "a", "b"]);
    }
}
