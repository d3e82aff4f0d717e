//! The ranks that report to a node: how far they are, and what their loops wait for.

use std::collections::BTreeMap;

use shardd_api::loop_time::{LoopTime, Stage};
use shardd_api::protocol::RunId;
use shardd_api::status::{NodeStatus, Reader};

use super::Snapshot;

/// The most ranks that have metrics of their own, the first by run and number: it bounds the series of a node.
pub(super) const MOST: usize = 256;

impl Snapshot {
    /// The ranks, and the exchange of their runs.
    pub(super) fn ranks(&mut self, status: &NodeStatus) {
        self.gauge("shardd_attached_ranks", "Ranks whose own node this is", status.own_ranks() as u64);
        let ranks = || status.readers.iter().take(MOST);
        let labels = |reader: &Reader| [("run", reader.run.to_string()), ("rank", reader.rank.to_string())];
        let all = |value: fn(&Reader) -> f64| ranks().map(move |reader| (labels(reader), value(reader)));
        self.gauges("shardd_rank_epoch", "Epoch of a rank, from 0", all(|reader| reader.epoch.into()));
        self.gauges(
            "shardd_rank_position",
            "Samples of the epoch that all ranks together have read, as the rank reports",
            all(|reader| reader.position as f64),
        );
        self.gauges(
            "shardd_rank_epoch_samples",
            "Samples of an epoch",
            all(|reader| reader.epoch_samples as f64),
        );
        let recent =
            ranks().filter_map(|reader| Some((labels(reader), reader.recent.as_ref()?.samples_per_second)));
        self.gauges("shardd_rank_samples_per_second", "Samples that a rank takes per second, lately", recent);
        let left = ranks().filter_map(|reader| {
            let rate = reader.run_rate.filter(|rate| rate.least + rate.most > 0.0)?;
            Some((labels(reader), reader.samples_left() as f64 / rate.middle()))
        });
        self.gauges(
            "shardd_rank_epoch_remaining_seconds",
            "Time until the epoch ends at the rate of the last minute, in seconds",
            left,
        );
        let timed = || ranks().filter_map(|reader| Some((reader, reader.loop_time?)));
        let of_loop =
            |value: fn(&LoopTime) -> f64| timed().map(move |(reader, time)| (labels(reader), value(&time)));
        self.counters_seconds(
            "shardd_rank_steps",
            "Steps that a rank has taken",
            of_loop(|time| time.steps as f64),
        );
        self.counters_seconds(
            "shardd_rank_compute_seconds",
            "Time in which the loop of a rank waited neither for data nor for other ranks, in seconds",
            of_loop(|time| time.compute_ms as f64 / 1e3),
        );
        self.counters_seconds(
            "shardd_rank_collective_wait_seconds",
            "Time that the loop of a rank waited for other ranks, if its trainer notes that, in seconds",
            of_loop(|time| time.ranks_ms as f64 / 1e3),
        );
        let losses = timed().filter_map(|(reader, time)| Some((labels(reader), time.loss?)));
        self.gauges("shardd_rank_loss", "Loss of the last step, if the trainer notes it", losses);
        let waits = timed().flat_map(|(reader, time)| {
            Stage::ALL.map(|stage| {
                let [run, rank] = labels(reader);
                let labels = [run, rank, ("stage", stage.name().to_owned())];
                (labels, time.waits.of(stage) as f64 / 1e3)
            })
        });
        self.counters_seconds(
            "shardd_rank_wait_seconds",
            "Time that the loop of a rank waited for data, by the stage it waited for, in seconds",
            waits,
        );
        self.exchange_left(status);
    }

    /// How long the rest of the exchange takes, at the rate at which this node sent in the last epochs.
    fn exchange_left(&mut self, status: &NodeStatus) {
        let mut sent: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for epoch in &status.counters.exchange {
            let (bytes, micros) = sent.entry(&epoch.run).or_default();
            *bytes += epoch.counts.sent_bytes;
            *micros += epoch.counts.sending_micros;
        }
        let left = |run: &RunId, bytes: u64| {
            let (sent, micros) = sent.get(run.as_str()).copied().filter(|(sent, _)| *sent > 0)?;
            Some(bytes as f64 / (sent as f64 / (micros.max(1) as f64 / 1e6)))
        };
        let waiting = status.exchange_now.waiting.iter();
        self.gauges(
            "shardd_run_exchange_remaining_seconds",
            "Time until this node has sent the rest of a run's exchange at its usual rate, in seconds",
            waiting.take(MOST).filter_map(|waiting| {
                Some(([("run", waiting.run.to_string())], left(&waiting.run, waiting.bytes)?))
            }),
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use shardd_api::exchange::{EpochCount, EpochExchange, ExchangeWaiting};
    use shardd_api::local_transport::Transport;
    use shardd_api::loop_time::RecentTime;
    use shardd_api::status::RunRate;

    use super::*;

    /// One that has every metric.
    pub(in super::super) fn reader() -> Reader {
        Reader {
            run: "r".parse().expect("a name"),
            rank: 0,
            epoch: 1,
            transport: Transport::Files,
            position: 60,
            epoch_samples: 100,
            loop_time: Some(LoopTime { loss: Some(1.0), ..LoopTime::default() }),
            recent: Some(RecentTime {
                over_s: 60.0,
                samples_per_second: 5.0,
                steps_per_second: 1.0,
                compute_share: 1.0,
                ranks_share: 0.0,
                wait_shares: BTreeMap::new(),
            }),
            run_rate: Some(RunRate { least: 3.0, most: 5.0 }),
            exposed_since: None,
        }
    }

    /// Bytes that wait to be sent for a run...
    pub(in super::super) fn waiting() -> ExchangeWaiting {
        ExchangeWaiting { run: "r".parse().expect("a name"), bytes: 500 }
    }

    /// ...of which so much was sent before.
    pub(in super::super) fn sent() -> EpochCount {
        let counts =
            EpochExchange { sent_bytes: 1000, sending_micros: 4_000_000, ..EpochExchange::default() };
        EpochCount { run: "r".to_owned(), epoch: 0, counts }
    }

    #[test]
    fn there_are_never_more_series_than_written_down() {
        let mut status = super::super::tests::status();
        status.readers = (0..1000).map(|rank| Reader { rank, ..reader() }).collect();
        let mut snapshot = Snapshot::default();
        snapshot.ranks(&status);
        let text = snapshot.text();
        assert_eq!(text.matches("shardd_rank_epoch{").count(), MOST);
        assert_eq!(text.matches("shardd_rank_wait_seconds_total{").count(), MOST * Stage::ALL.len());
        assert!(text.contains("shardd_attached_ranks 1000\n"), "all are counted");
        assert!(
            text.contains("shardd_rank_epoch_remaining_seconds{run=\"r\",rank=\"0\"} 10.0\n"),
            "{}",
            &text[..800]
        );
    }

    #[test]
    fn the_rest_of_an_exchange_takes_as_long_as_the_rate_says() {
        let status = super::super::tests::status();
        let mut snapshot = Snapshot::default();
        snapshot.ranks(&status);
        assert!(
            snapshot.text().contains("shardd_run_exchange_remaining_seconds{run=\"r\"} 2.0\n"),
            "{}",
            snapshot.text()
        );
    }
}
