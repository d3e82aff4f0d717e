//! `shardctl audit verify`: checks a root, the reports of a run's ranks, or their consumed samples against
//! plan and manifest.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use shardd_api::protocol::RunRecord;
use shardd_client::audit::{EpochFinding, Finding, RankFinding, compare};
use shardd_plan::{Epoch, Plan, SlotTable};
use shardd_store::catalog::Catalog;
use shardfmt::audit::{ConsumedReport, put_together, root};
use shardfmt::{NodeHash, PlanId, RowDigest, VersionId};

use super::{digests, table};
use crate::failure::{Failure, one_line};
use crate::human::{count, plural};
use crate::output;
use crate::plan::{EpochRange, PlanOrRun};

/// Arguments of `audit verify`.
#[derive(Args)]
pub(super) struct Verify {
    #[command(flatten)]
    which: PlanOrRun,

    /// The epochs: FROM..TO without TO, or the number of them [default: the reported ones; with --root, epoch
    /// 0]
    #[arg(long, value_name = "EPOCHS")]
    epochs: Option<EpochRange>,

    /// The root to verify, of one epoch
    #[arg(long, conflicts_with_all = ["run", "consumed"])]
    root: Option<NodeHash>,

    /// The samples that ranks consumed: files that `read --consumed` wrote, of all ranks
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "run")]
    consumed: Vec<PathBuf>,
}

/// The findings.
#[derive(Serialize)]
struct Verdict {
    plan: PlanId,
    version: VersionId,
    /// Whether all of it was read exactly once in each epoch.
    exactly_once: bool,
    epochs: Vec<EpochVerdict>,
}

/// The findings on an epoch.
#[derive(Serialize)]
struct EpochVerdict {
    epoch: u32,
    exactly_once: bool,
    /// The evidence, in words.
    said: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<NodeHash>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<RankFinding>,
}

impl Verify {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        if self.root.is_none() && self.consumed.is_empty() && !self.which.is_run() {
            return Err(Failure::usage(
                "say what to verify: --run RUN, --root ROOT of an epoch, or --consumed FILE of each rank",
            ));
        }
        let (plan, manifest, run) = self.which.open(catalog)?;
        let epochs = match (run, self.root) {
            (Some(run), _) => self.reported(catalog, &plan, &run, || digests(catalog, &manifest))?,
            (None, Some(root)) => vec![self.rooted(&plan, root, &digests(catalog, &manifest)?)?],
            (None, None) => self.put_together(&plan, || digests(catalog, &manifest))?,
        };
        let exactly_once = epochs.iter().all(|epoch| epoch.exactly_once);
        let version = plan.document().version;
        let verdict = Verdict { plan: plan.id(), version, exactly_once, epochs };
        match json {
            true => output::json(&verdict),
            false => output::print(&describe(&verdict)),
        }
        let wrong: Vec<u32> =
            verdict.epochs.iter().filter(|epoch| !epoch.exactly_once).map(|epoch| epoch.epoch).collect();
        match wrong.as_slice() {
            [] => Ok(()),
            [one] => Err(Failure::failed(format!("epoch {one} does not match plan and manifest"))),
            [first, ..] => Err(Failure::failed(format!(
                "{} do not match plan and manifest, the first is epoch {first}",
                plural(wrong.len() as u64, "epoch")
            ))),
        }
    }

    /// Against the counts and sums that ranks reported.
    fn reported(
        &self,
        catalog: &dyn Catalog,
        plan: &Plan,
        run: &RunRecord,
        rows: impl FnOnce() -> Result<Vec<RowDigest>, Failure>,
    ) -> Result<Vec<EpochVerdict>, Failure> {
        let reports = catalog.audits(&run.id)?;
        let Some(last) = reports.iter().map(|report| report.epoch).max() else {
            return Err(Failure::failed(format!(
                "no rank of run {} has reported anything: they do so at the end of an epoch that they read with the audit on",
                run.id
            )));
        };
        let epochs = self.epochs.map_or(0..last.saturating_add(1), EpochRange::range);
        let rows = rows()?;
        self.each(plan, epochs, |table| {
            let EpochFinding { epoch, exactly_once, ranks } =
                compare(plan, table, &rows, run.virtual_ranks, &reports);
            EpochVerdict { epoch, exactly_once, said: in_words(exactly_once, &ranks), root: None, ranks }
        })
    }

    /// Against a root that is given.
    fn rooted(&self, plan: &Plan, given: NodeHash, rows: &[RowDigest]) -> Result<EpochVerdict, Failure> {
        let epochs = self.epochs.map_or(0..1, EpochRange::range);
        if epochs.len() != 1 {
            return Err(Failure::usage("a root is of one epoch: say which, such as --epochs 3..4"));
        }
        let expected = root(plan, &table(plan, epochs.start)?, rows);
        let said = match expected == given {
            true => "the root is that of plan and manifest".to_owned(),
            false => format!("the root is not that of plan and manifest, which is {expected}"),
        };
        let exactly_once = expected == given;
        Ok(EpochVerdict { epoch: epochs.start, exactly_once, said, root: Some(given), ranks: vec![] })
    }

    /// Against what ranks consumed.
    fn put_together(
        &self,
        plan: &Plan,
        rows: impl FnOnce() -> Result<Vec<RowDigest>, Failure>,
    ) -> Result<Vec<EpochVerdict>, Failure> {
        let mut reports = Vec::new();
        for file in &self.consumed {
            read_reports(file, &mut reports)?;
        }
        let said: BTreeSet<u32> = reports.iter().map(|report| report.subject.epoch).collect();
        let epochs: Vec<u32> = match self.epochs {
            Some(range) => range.range().collect(),
            None => said.into_iter().collect(),
        };
        let rows = rows()?;
        self.each(plan, epochs, |table| {
            let epoch = table.epoch();
            let of_epoch = reports.iter().filter(|report| report.subject.epoch == epoch.0).cloned();
            let (exactly_once, said, found) = match put_together(plan, epoch, &of_epoch.collect::<Vec<_>>()) {
                Err(error) => (false, error.to_string(), None),
                Ok(found) if found == root(plan, table, &rows) => {
                    (true, format!("{}, each once", plural(plan.sample_count(), "sample")), Some(found))
                }
                Ok(found) => (false, "some samples had other bytes than the version".to_owned(), Some(found)),
            };
            EpochVerdict { epoch: epoch.0, exactly_once, said, root: found, ranks: vec![] }
        })
    }

    fn each(
        &self,
        plan: &Plan,
        epochs: impl IntoIterator<Item = u32>,
        mut verdict: impl FnMut(&SlotTable) -> EpochVerdict,
    ) -> Result<Vec<EpochVerdict>, Failure> {
        let mut known: Option<SlotTable> = None;
        let mut verdicts = Vec::new();
        for epoch in epochs {
            let mut next = match known.take() {
                Some(known) => known,
                None => table(plan, epoch)?,
            };
            shardd_api::lookup::check_table(plan, epoch).map_err(Failure::wrong)?;
            while next.epoch() < Epoch(epoch) {
                next.advance(plan);
            }
            verdicts.push(verdict(&next));
            known = Some(next);
        }
        Ok(verdicts)
    }
}

fn read_reports(path: &Path, reports: &mut Vec<ConsumedReport>) -> Result<(), Failure> {
    let unread = |error| Failure::failed(format!("{} cannot be read: {error}", path.display()));
    for (number, line) in (1..).zip(BufReader::new(File::open(path).map_err(unread)?).lines()) {
        let report = serde_json::from_str(&line.map_err(unread)?).map_err(|error| {
            let (file, reason) = (path.display(), one_line(&error));
            Failure::failed(format!("{file}, line {number}: not the format of `read --consumed`: {reason}"))
        })?;
        reports.push(report);
    }
    Ok(())
}

/// The evidence for or against an epoch.
fn in_words(exactly_once: bool, ranks: &[RankFinding]) -> String {
    if ranks.is_empty() {
        return "no rank reported a sum".to_owned();
    }
    let is_off = |rank: &&RankFinding| !matches!(rank.finding, Finding::Exact | Finding::Together);
    if !exactly_once {
        let off = ranks.iter().filter(is_off);
        let off: Vec<String> =
            off.map(|rank| format!("rank {} of {} {}", rank.rank, rank.world, told(rank))).collect();
        return off.join("; ");
    }
    // Ranks of a world that ended within the epoch have reported less, or nothing; those that continued, all
    // of it.
    let incomplete: BTreeSet<u32> = ranks.iter().filter(is_off).map(|rank| rank.world).collect();
    let complete: Vec<&RankFinding> = ranks.iter().filter(|rank| !incomplete.contains(&rank.world)).collect();
    let of_one_world = complete.iter().filter(|rank| rank.world == complete[0].world);
    let samples = of_one_world.filter_map(|rank| rank.samples).sum();
    format!("{} in {}, each once", plural(samples, "sample"), plural(complete.len() as u64, "report"))
}

fn told(rank: &RankFinding) -> String {
    let share = count(rank.share);
    match rank.finding {
        Finding::Exact | Finding::Together => format!("read its {share}"),
        Finding::Part { from, to } => {
            let samples = count(rank.samples.unwrap_or_default());
            format!(
                "read {samples} of its {share}, at positions {from} to before {to}: it began or stopped within the epoch"
            )
        }
        Finding::Silent => "reported nothing".to_owned(),
        Finding::OneMore { sample } => format!("read its {share} and sample {sample} more"),
        Finding::OneLess { sample } => format!("read all of its {share} but sample {sample}"),
        Finding::Other => {
            let samples = count(rank.samples.unwrap_or_default());
            format!(
                "read {samples}, which are not its {share}: some were left out, came again, or had other bytes"
            )
        }
    }
}

fn describe(verdict: &Verdict) -> String {
    let mut page = String::new();
    for EpochVerdict { epoch, said, root, .. } in &verdict.epochs {
        page.push_str(&format!("epoch {epoch}: {said}\n"));
        if let Some(root) = root {
            page.push_str(&format!("  root {root}\n"));
        }
    }
    if verdict.exactly_once {
        page.push_str(&format!(
            "exactly version {} was read, each sample once in {}\n",
            verdict.version,
            plural(verdict.epochs.len() as u64, "epoch")
        ));
    }
    page
}
