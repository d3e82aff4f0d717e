//! Lines that tell people how a training is going, every few seconds. Pure: the caller passes the elapsed
//! time.

use std::time::Duration;

use shardd_trainer::checkpoint::CheckpointBytes;
use shardd_trainer::train::Progress;
use shardfmt::ByteSize;

/// The events since the last line.
#[derive(Debug, Default)]
pub(crate) struct Status {
    steps: u32,
    loss: f64,
    data_s: f64,
    compute_s: f64,
    communication_s: f64,
    all_s: f64,
    checkpoint: Option<CheckpointBytes>,
}

impl Status {
    /// Takes in a step.
    pub(crate) fn add(&mut self, progress: &Progress) {
        let time = &progress.time;
        self.steps += 1;
        self.loss += progress.loss;
        self.checkpoint = progress.checkpoint.or(self.checkpoint);
        self.data_s += time.wait_s + time.decode_s;
        self.communication_s += time.reduce_s;
        self.compute_s += time.compute_s + time.update_s - time.reduce_s;
        self.all_s += time.wait_s + time.decode_s + time.compute_s + time.update_s;
    }

    /// The line for the steps taken in, up to the last; then it begins again.
    pub(crate) fn line(&mut self, progress: &Progress, epochs: u32) -> String {
        let Status { steps, loss, data_s, compute_s, communication_s, all_s, checkpoint } =
            std::mem::take(self);
        let share = |seconds: f64| if all_s > 0.0 { 100.0 * seconds / all_s } else { 0.0 };
        let straggler = progress.straggler.map_or(String::new(), |it| {
            format!("; the others wait for rank {} {:.0} % of the time", it.rank, 100.0 * it.wait_share)
        });
        let checkpoint = checkpoint.map_or(String::new(), |it| {
            let (written, present) = (ByteSize(it.written_bytes), ByteSize(it.present_bytes));
            format!("; checkpoint of step {}: {written} written, {present} reused", it.step)
        });
        format!(
            "epoch {} of {epochs}, step {} of {}: loss {:.4}, {:.0} samples/s; {:.0} % data, {:.0} % computing, {:.0} % communication{straggler}{checkpoint}; {} left",
            progress.epoch + 1,
            progress.step + 1,
            progress.steps,
            loss / f64::from(steps.max(1)),
            progress.samples_per_s,
            share(data_s),
            share(compute_s),
            share(communication_s),
            span(Duration::try_from_secs_f64(progress.left_s).unwrap_or(Duration::MAX)),
        )
    }
}

/// In the two largest units.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use shardd_trainer::collective::Straggler;
    use shardd_trainer::train::StepTime;

    /// Of a step of the second epoch, which has 50.
    pub(crate) fn progress(step: u64, loss: f64) -> Progress {
        let time = StepTime { wait_s: 0.5, decode_s: 0.5, compute_s: 6.0, update_s: 3.0, reduce_s: 2.0 };
        Progress {
            rank: 0,
            epoch: 1,
            step,
            steps: 50,
            loss,
            accuracy: 0.0,
            is_skipped: false,
            loss_scale: None,
            groups_inside_machines: None,
            gradient_norm: 1.0,
            rate: 0.1,
            memory: shardd_trainer::ledger::Usage::default(),
            checkpoint_s: 0.0,
            checkpoint: None,
            samples_per_s: 1234.4,
            left_s: 3_725.0,
            straggler: None,
            time,
        }
    }

    #[test]
    fn a_line_tells_what_happened_since_the_last_one() {
        let mut status = Status::default();
        status.add(&progress(3, 2.0));
        status.add(&progress(4, 1.0));
        assert_eq!(
            status.line(&progress(4, 1.0), 10),
            "epoch 2 of 10, step 5 of 50: loss 1.5000, 1234 samples/s; 10 % data, 70 % computing, 20 % communication; 1 h 2 min left"
        );
        let straggler = Some(Straggler { rank: 3, wait_share: 0.25 });
        let slow = Progress { straggler, ..progress(5, 0.5) };
        status.add(&slow);
        let line = status.line(&slow, 10);
        assert!(line.contains("loss 0.5000"), "it began again: {line}");
        assert!(line.contains("communication; the others wait for rank 3 25 % of the time; 1 h"), "{line}");
        let checkpoint = Some(CheckpointBytes { step: 40, written_bytes: 1 << 20, present_bytes: 3 << 20 });
        status.add(&Progress { checkpoint, ..progress(6, 0.5) });
        status.add(&progress(7, 0.5));
        let line = status.line(&progress(7, 0.5), 10);
        assert!(
            line.contains("communication; checkpoint of step 40: 1.0 MiB written, 3.0 MiB reused; 1 h"),
            "{line}"
        );
    }

    #[test]
    fn spans_have_two_units() {
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3_600, "1 h 0 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(span(Duration::from_secs(seconds)), expected);
        }
    }
}
