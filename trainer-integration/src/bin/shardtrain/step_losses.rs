//! The losses of the samples of a step, as `shardtrain rerun --sample-losses` prints and saves them.

use std::io::{self, Write};

use serde::Serialize;
use shardd_plan::{Epoch, Plan};
use shardd_store::record;
use shardd_trainer::train::step_losses::{SampleLoss, StepLosses};

/// Samples on a page; `--json` has all.
const SHOWN: usize = 20;

/// A sample of the step.
#[derive(Serialize)]
struct Line {
    /// Its number in the order of the dataset.
    sample: u64,
    #[serde(flatten)]
    loss: SampleLoss,
}

/// The samples, that with the largest loss first; NaN is larger than all others.
fn lines(losses: &[SampleLoss], plan: &Plan, epoch: u32) -> Vec<Line> {
    let line =
        |loss: &SampleLoss| Line { sample: plan.sample_at(Epoch(epoch), loss.position).0, loss: *loss };
    let mut lines: Vec<Line> = losses.iter().map(line).collect();
    let place = |line: &Line| if line.loss.loss.is_nan() { f64::INFINITY } else { line.loss.loss };
    lines.sort_by(|one, other| place(other).total_cmp(&place(one)));
    lines
}

/// The epoch of the step.
fn epoch_of(losses: &StepLosses, steps_per_epoch: u64) -> u32 {
    u32::try_from(losses.step() / steps_per_epoch.max(1)).unwrap_or(u32::MAX)
}

/// As they are saved beside the record.
pub(crate) fn rows(losses: &StepLosses, plan: &Plan, steps_per_epoch: u64) -> Vec<record::SampleLoss> {
    let epoch = Epoch(epoch_of(losses, steps_per_epoch));
    let row = |of: SampleLoss| {
        let SampleLoss { position, virtual_rank, loss, answers } = of;
        record::SampleLoss {
            sample: plan.sample_at(epoch, position).0,
            position,
            virtual_rank,
            loss,
            answers,
        }
    };
    losses.found().into_iter().map(row).collect()
}

/// Prints them, as JSON or with the largest on a page.
pub(crate) fn tell(losses: &StepLosses, plan: &Plan, steps_per_epoch: u64, json: bool) -> io::Result<()> {
    let step = losses.step();
    let epoch = epoch_of(losses, steps_per_epoch);
    let lines = lines(&losses.found(), plan, epoch);
    let mut out = io::stdout().lock();
    let written = match json {
        true => {
            let page = serde_json::json!({ "step": step, "epoch": epoch, "samples": lines });
            writeln!(out, "{page}")
        }
        false => out.write_all(page(step, epoch, &lines).as_bytes()),
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn page(step: u64, epoch: u32, lines: &[Line]) -> String {
    let answers: u64 = lines.iter().map(|line| line.loss.answers).sum();
    let sum: f64 = lines.iter().map(|line| line.loss.loss * line.loss.answers as f64).sum();
    let mean = sum / answers.max(1) as f64;
    let mut page = format!("step {step}, epoch {epoch}: {} samples, mean loss {mean:.6}\n\n", lines.len());
    page.push_str(&format!("{:>12}  {:>10}  {:>12}  {:>12}\n", "loss", "sample", "position", "virtual rank"));
    for Line { sample, loss } in lines.iter().take(SHOWN) {
        let SampleLoss { position, virtual_rank, loss, .. } = loss;
        page.push_str(&format!("{loss:>12.6}  {sample:>10}  {position:>12}  {virtual_rank:>12}\n"));
    }
    if lines.len() > SHOWN {
        page.push_str(&format!("\n{SHOWN} of {}; --json prints all\n", lines.len()));
    }
    page
}

#[cfg(test)]
mod tests {
    use shardd_plan::{PlanDocument, PlanOptions, Shape};

    use super::*;

    #[test]
    fn the_largest_loss_comes_first_and_nan_before_it() {
        let version = shardfmt::VersionId::of(b"version");
        let shape = Shape { shard_rows: vec![10], row_bytes: 100 };
        let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default()).unwrap();
        let plan = Plan::new(document, &shape.shard_rows).unwrap();
        let of = |position: u64, loss: f64| SampleLoss { position, virtual_rank: 0, loss, answers: 1 };
        let lines = lines(&[of(0, 1.0), of(1, 3.0), of(2, f64::NAN), of(3, 2.0)], &plan, 0);
        assert_eq!(lines.iter().map(|line| line.loss.position).collect::<Vec<_>>(), [2, 1, 3, 0]);
        assert_eq!(lines[1].sample, plan.sample_at(Epoch(0), 1).0);
    }
}
