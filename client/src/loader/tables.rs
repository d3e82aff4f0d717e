//! The slot tables that a loader reads by, epoch after epoch, and where they come from.
//!
//! A table of few grains is worked out on the spot. A large table takes seconds, and much later in a run
//! minutes, and no step waits for it: it is read from the file of another process of this machine, or else a
//! thread computes it for all processes of the machine, while the grains of the next steps are traced one by
//! one. Each way gives the same grains, so it changes only how long reading takes.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardd_plan::{Epoch, Plan, SlotTable};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::spawn;
use crate::shared_cache::SlotTables;

/// This number of grains is moved in some hundredths of a second: a table that takes no more is worked out on
/// the spot.
const QUICK: u128 = 1 << 20;

/// How often it is looked whether another process has worked a table out.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long another process may take before this one works it out for itself.
const LEASE: Duration = Duration::from_secs(30);

/// The tables of one plan, of which the present one is at hand.
pub(crate) struct Tables {
    plan: Arc<Plan>,
    /// The cache directory of this machine, if there is one.
    cache_dir: Option<PathBuf>,
    /// The kept tables, once there are any.
    kept: OnceCell<Option<SlotTables>>,
    quick: u128,
    now: Option<SlotTable>,
    coming: Option<Coming>,
}

/// A table that a thread works out; it is ended when it is dropped.
struct Coming {
    stop: CancellationToken,
    thread: Option<JoinHandle<Option<SlotTable>>>,
}

impl Tables {
    /// Tables of `plan`, of which large ones are kept in `cache_dir`.
    pub(crate) fn new(plan: Arc<Plan>, cache_dir: Option<PathBuf>) -> Self {
        Self { plan, cache_dir, kept: OnceCell::new(), quick: QUICK, now: None, coming: None }
    }

    /// The epoch whose table was asked for last.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.now.as_ref().map(SlotTable::epoch)
    }

    /// The table of an epoch, at once; best not of one before that of the last call.
    pub(crate) fn of(&mut self, epoch: Epoch) -> &SlotTable {
        let done = self.coming.take_if(|coming| coming.is_done()).and_then(Coming::take);
        let table = match (self.now.take(), done) {
            (Some(now), _) if now.epoch() == epoch && !now.is_traced() => now,
            (_, Some(done)) if done.epoch() == epoch => done,
            (Some(now), None) if now.epoch() == epoch => now,
            (Some(now), Some(done))
                if (done.epoch()..epoch).contains(&now.epoch()) && now.is_worked_out() =>
            {
                self.begin(Some(now), epoch)
            }
            // A thread that took longer than an epoch has at least come nearer.
            (_, Some(done)) if done.epoch() < epoch => self.begin(Some(done), epoch),
            (now, _) => {
                let now = now.inspect(|now| self.let_go(now));
                self.begin(now.filter(|now| now.epoch() < epoch && !now.is_traced()), epoch)
            }
        };
        self.now.insert(table)
    }

    /// The table of an epoch that was not read yet.
    fn begin(&mut self, base: Option<SlotTable>, epoch: Epoch) -> SlotTable {
        let is_dear = work(&self.plan, None, epoch) > self.quick;
        if !is_dear || work(&self.plan, base.as_ref(), epoch) <= self.quick {
            let table = worked_out(&self.plan, base, epoch, &CancellationToken::new());
            let table = table.expect("there is no stop signal");
            if is_dear && self.coming.is_none() && self.kept().is_some() {
                self.start(Some(table.clone()), epoch);
            }
            return table;
        }
        if let Some(table) = self.kept().and_then(|kept| kept.get(&self.plan, epoch)) {
            return table;
        }
        if self.coming.is_none() {
            self.start(base, epoch);
        }
        SlotTable::traced(&self.plan, epoch)
    }

    fn kept(&self) -> Option<&SlotTables> {
        let open = || match SlotTables::open(self.cache_dir.as_ref()?) {
            Ok(kept) => Some(kept),
            Err(error) => {
                debug!(%error, "tables of slots cannot be kept");
                None
            }
        };
        self.kept.get_or_init(open).as_ref()
    }

    /// A table in which damage was met is worked out again by the next reader.
    fn let_go(&self, table: &SlotTable) {
        if table.is_damaged()
            && let Some(kept) = self.kept()
        {
            warn!(epoch = %table.epoch(), "a table of slots was damaged where it is kept; its grains were traced");
            kept.discard(self.plan.id(), table.epoch());
        }
    }

    /// Has a thread work out the table of an epoch, and keep it.
    fn start(&mut self, base: Option<SlotTable>, epoch: Epoch) {
        let stop = CancellationToken::new();
        let (plan, kept, stopped) = (Arc::clone(&self.plan), self.kept().cloned(), stop.clone());
        match spawn("shardd-slots", move || brought(&plan, kept.as_ref(), base, epoch, &stopped)) {
            Ok(thread) => self.coming = Some(Coming { stop, thread: Some(thread) }),
            // Grains are traced then, which is slower.
            Err(error) => debug!(%error, "no thread for a table of slots"),
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        if let Some(now) = self.now.take() {
            self.let_go(&now);
        }
    }
}

impl Coming {
    fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn take(mut self) -> Option<SlotTable> {
        self.thread.take()?.join().ok().flatten()
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The table of an epoch: worked out by this process or another one, and kept. `None` when it is not wanted any more.
fn brought(
    plan: &Plan,
    kept: Option<&SlotTables>,
    base: Option<SlotTable>,
    epoch: Epoch,
    stop: &CancellationToken,
) -> Option<SlotTable> {
    let Some(kept) = kept else { return worked_out(plan, base, epoch, stop) };
    let began = Instant::now();
    let turn = loop {
        match kept.begin(plan.id(), epoch) {
            Ok(None) if stop.is_cancelled() => return None,
            Ok(None) if began.elapsed() > LEASE => break None,
            Ok(None) => std::thread::sleep(LOOK_EVERY),
            Ok(turn) => break turn,
            Err(error) => {
                debug!(%error, "tables of slots cannot be kept");
                break None;
            }
        }
    };
    // Another process may have had its turn.
    if let Some(table) = kept.get(plan, epoch) {
        return Some(table);
    }
    let before =
        kept.before(plan, epoch).filter(|kept| base.as_ref().is_none_or(|base| base.epoch() < kept.epoch()));
    let table = worked_out(plan, before.or(base), epoch, stop)?;
    match turn.map(|turn| turn.put(plan, &table)) {
        Some(Ok(false)) => debug!(%epoch, "no room to keep a table of slots"),
        Some(Err(error)) => debug!(%epoch, %error, "a table of slots could not be kept"),
        Some(Ok(true)) | None => {}
    }
    Some(table)
}

/// The table of an epoch, from an earlier one or from the beginning; `None` when it is not wanted any more.
fn worked_out(
    plan: &Plan,
    base: Option<SlotTable>,
    epoch: Epoch,
    stop: &CancellationToken,
) -> Option<SlotTable> {
    let mut table = base.unwrap_or_else(|| SlotTable::initial(plan));
    while table.epoch() < epoch {
        if !table.advance_while(plan, || !stop.is_cancelled()) {
            return None;
        }
    }
    Some(table)
}

/// How many grains are placed or moved to work out the table of `epoch`, from `base` or from the beginning.
fn work(plan: &Plan, base: Option<&SlotTable>, epoch: Epoch) -> u128 {
    let (slots, schedule) = (u128::from(plan.full_grain_count()), &plan.document().schedule);
    let from = base.map_or(0, |base| base.epoch().0);
    let listed = (schedule.shares().len() as u32).clamp(from, epoch.0);
    let listed_units: u128 =
        (from..listed).map(|epoch| u128::from(schedule.after(Epoch(epoch)).units())).sum();
    let later_units = u128::from(epoch.0 - listed) * u128::from(schedule.after(epoch).units());
    let placed = if base.is_some_and(SlotTable::is_worked_out) { 0 } else { slots };
    placed + ((slots * (listed_units + later_units)) >> 32)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;
    use shardd_plan::{GrainNo, PlanDocument, PlanOptions, Shape};
    use shardfmt::{ByteSize, VersionId};
    use tempfile::TempDir;

    use super::*;

    fn plan(seed: u64) -> Arc<Plan> {
        let shape = Shape { shard_rows: vec![2_000; 3], row_bytes: 6_000 };
        let options =
            PlanOptions { seed, partitions: Some(5), grain_rows: Some(1), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(VersionId::of(b"a version"), &shape, options);
        Arc::new(Plan::new(document.expect("defaults fit"), &shape.shard_rows).expect("of this shape"))
    }

    fn held(plan: &Plan, table: &SlotTable) -> Vec<GrainNo> {
        plan.partitions().flat_map(|m| table.grains_of(plan, m).collect::<Vec<_>>()).collect()
    }

    /// As for a plan of many grains.
    fn large(plan: &Arc<Plan>, dir: Option<&Path>) -> Tables {
        with_quick(plan, 0, dir)
    }

    fn with_quick(plan: &Arc<Plan>, quick: u128, dir: Option<&Path>) -> Tables {
        let mut tables = Tables::new(Arc::clone(plan), dir.map(Path::to_owned));
        tables.quick = quick;
        tables
    }

    /// Waits for what a thread works out.
    fn settle(tables: &mut Tables) {
        if let Some(table) = tables.coming.take().and_then(Coming::take) {
            tables.now = Some(table);
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir.join("slots")).expect("it is there");
        let names = entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name != "lock").collect();
        names.sort();
        names
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

        #[test]
        fn however_a_table_is_had_it_is_that_of_the_epoch(
            asked in prop::collection::vec((0..3u32, any::<bool>(), 0..3usize), 1..8), quick in 0..9_000u128, is_kept: bool,
        ) {
            let (plan, dir) = (plan(1), TempDir::new().expect("a temporary directory"));
            let opened = || with_quick(&plan, quick, is_kept.then(|| dir.path()));
            let (mut tables, mut epoch) = (opened(), 0);
            for (ahead, settles, kind) in asked {
                epoch += ahead;
                prop_assert_eq!(tables.of(Epoch(epoch)).epoch(), Epoch(epoch));
                if settles {
                    settle(&mut tables);
                }
                let expected = held(&plan, &SlotTable::at(&plan, Epoch(epoch)));
                prop_assert_eq!(held(&plan, tables.of(Epoch(epoch))), expected);
                if kind == 0 {
                    tables = opened();
                }
            }
        }
    }

    #[test]
    fn what_one_process_has_worked_out_the_next_one_reads() {
        let (plan, dir) = (plan(2), TempDir::new().expect("a temporary directory"));
        let mut first = large(&plan, Some(dir.path()));
        assert!(!first.of(Epoch(4)).is_worked_out(), "no reader waits for it");
        settle(&mut first);
        assert!(first.of(Epoch(4)).is_worked_out());
        assert_eq!(names(dir.path()), [format!("{}-4", plan.id())]);
        let mut second = large(&plan, Some(dir.path()));
        let expected = held(&plan, &SlotTable::at(&plan, Epoch(4)));
        assert_eq!(held(&plan, second.of(Epoch(4))), expected);
        assert!(second.coming.is_none(), "nothing is left to work out");
    }

    #[test]
    fn damage_is_met_with_work_and_never_with_wrong_grains() {
        let (plan, dir) = (plan(3), TempDir::new().expect("a temporary directory"));
        let mut first = large(&plan, Some(dir.path()));
        first.of(Epoch(2));
        settle(&mut first);
        let path = dir.path().join("slots").join(&names(dir.path())[0]);
        let whole = fs::read(&path).expect("it is there");
        let expected = held(&plan, &SlotTable::at(&plan, Epoch(2)));
        for (at, is_header) in [(70, true), (whole.len() - 100, false)] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            // As a disk does it: another file of that name.
            fs::remove_file(&path).expect("it is there");
            fs::write(&path, damaged).expect("disk space");
            let mut tables = large(&plan, Some(dir.path()));
            assert_eq!(held(&plan, tables.of(Epoch(2))), expected);
            assert_eq!(tables.coming.is_some(), is_header, "a table without its digests is worked out again");
            settle(&mut tables);
            assert_eq!(held(&plan, tables.of(Epoch(2))), expected);
            drop(tables);
            assert_eq!(path.exists(), is_header, "a damaged table is not read twice");
        }
    }

    #[test]
    fn the_newest_of_a_plan_stay_and_all_together_keep_to_the_limit() {
        let dir = TempDir::new().expect("a temporary directory");
        let plans = [plan(4), plan(5)];
        for plan in &plans {
            let mut tables = large(plan, Some(dir.path()));
            for epoch in 1..6 {
                tables.of(Epoch(epoch));
                settle(&mut tables);
            }
        }
        let of = |plan: &Plan| {
            names(dir.path()).iter().filter(|name| name.starts_with(&plan.id().to_string())).count()
        };
        assert_eq!((of(&plans[0]), of(&plans[1])), (3, 3));
        let table = SlotTable::at(&plans[0], Epoch(9));
        let bytes = table.written_bytes(&plans[0]);
        let small = |tables: u64| {
            SlotTables::open(dir.path()).expect("a directory").with_limit(ByteSize(bytes * tables))
        };
        let put = |kept: &SlotTables, epoch| {
            let turn = kept.begin(plans[0].id(), epoch).expect("writable").expect(
                "no other process is at \
                it",
            );
            turn.put(&plans[0], &SlotTable::at(&plans[0], epoch)).expect("writable")
        };
        assert!(put(&small(2), Epoch(9)));
        assert_eq!(names(dir.path()).len(), 2);
        assert!(!put(&small(0), Epoch(10)), "no room at all");
        assert_eq!(names(dir.path()).len(), 2, "nothing gives way to what finds no room anyway");
    }

    #[test]
    fn one_process_works_a_table_out_and_what_a_dead_one_left_is_no_hindrance() {
        let (plan, dir) = (plan(6), TempDir::new().expect("a temporary directory"));
        let kept = SlotTables::open(dir.path()).expect("a directory");
        let turn = kept.begin(plan.id(), Epoch(1)).expect("writable").expect("no other process is at it");
        assert!(kept.begin(plan.id(), Epoch(1)).expect("writable").is_none());
        let mut waiting = large(&plan, Some(dir.path()));
        let expected = held(&plan, &SlotTable::at(&plan, Epoch(1)));
        assert_eq!(held(&plan, waiting.of(Epoch(1))), expected, "meanwhile grains are traced");
        assert!(turn.put(&plan, &SlotTable::at(&plan, Epoch(1))).expect("writable"));
        settle(&mut waiting);
        assert!(!waiting.of(Epoch(1)).is_worked_out(), "it is read, not worked out again");
        assert_eq!(held(&plan, waiting.of(Epoch(1))), expected);

        let left = dir.path().join("slots").join(format!("{}-2.part", plan.id()));
        fs::write(&left, b"half a table").expect("disk space");
        let mut next = large(&plan, Some(dir.path()));
        next.of(Epoch(2));
        settle(&mut next);
        assert_eq!(names(dir.path()), [format!("{}-1", plan.id()), format!("{}-2", plan.id())]);
        assert_eq!(held(&plan, next.of(Epoch(2))), held(&plan, &SlotTable::at(&plan, Epoch(2))));
    }

    #[test]
    fn a_table_that_takes_long_is_given_up_with_its_loader() {
        let (plan, dir) = (plan(7), TempDir::new().expect("a temporary directory"));
        let mut tables = large(&plan, Some(dir.path()));
        assert_eq!(tables.of(Epoch(100_000_000)).epoch(), Epoch(100_000_000));
        drop(tables);
        assert_eq!(names(dir.path()), [""; 0], "and leaves nothing behind");
    }

    #[test]
    fn work_is_what_is_placed_and_moved() {
        let plan = plan(8);
        assert_eq!(work(&plan, None, Epoch(0)), 6_000);
        assert_eq!(work(&plan, None, Epoch(10)), 12_000);
        assert_eq!(work(&plan, Some(&SlotTable::at(&plan, Epoch(4))), Epoch(10)), 3_600);
        assert!(work(&plan, None, Epoch(u32::MAX)) > QUICK);
    }
}
