//! What the demo found out, as values, as JSON, and as a page that a person likes to read. Measures nothing itself.

use std::time::Duration;

use serde::Serialize;
use shardd_api::status::NodeStatus;
use shardfmt::ByteSize;

use crate::human::{count, duration, percent, plural, sparkline};

/// Everything the demo reports.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) dataset: DatasetFacts,
    pub(crate) plan: PlanFacts,
    pub(crate) nodes: u32,
    pub(crate) ranks: u32,
    pub(crate) virtual_ranks: u32,
    /// Nodes killed on the way, such as `n2 at epoch 5.5`.
    pub(crate) killed: Vec<String>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) weights_digest: String,
    pub(crate) samples_per_s: f64,
    pub(crate) loader_wait_s: f64,
    pub(crate) epochs: Vec<EpochFacts>,
    pub(crate) moved: MovedFacts,
    pub(crate) origin: OriginFacts,
    pub(crate) exchange: ExchangeFacts,
    /// The counters of every node, for who wants to look closer.
    pub(crate) node_status: Vec<NodeStatus>,
    pub(crate) training_s: f64,
    pub(crate) total_s: f64,
}

/// The data of the training.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DatasetFacts {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) samples: u64,
    pub(crate) test_samples: u64,
    pub(crate) shards: u64,
    pub(crate) bytes: u64,
}

/// The plan's main numbers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PlanFacts {
    pub(crate) id: String,
    pub(crate) q: String,
    pub(crate) partitions: u32,
    pub(crate) grain_rows: u32,
}

/// One epoch: its loss, and what all ranks together read against what the manifest says there is.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EpochFacts {
    pub(crate) epoch: u32,
    pub(crate) loss: f64,
    pub(crate) samples: u64,
    pub(crate) digest_sum: String,
    /// Count and digest sum equal the manifest's: every sample was delivered exactly once, as it was ingested.
    pub(crate) exactly_once: bool,
}

/// Grains that changed places, per epoch as a share of all.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MovedFacts {
    /// How many exchanges there were: one less than epochs.
    pub(crate) exchanges: u32,
    /// Q (1 - 1/P), averaged over the exchanges of this run.
    pub(crate) between_partitions_predicted: f64,
    /// Counted from the plan's own moves.
    pub(crate) between_partitions_planned: f64,
    /// Those planned moves whose two partitions lie on different nodes, by the placement.
    pub(crate) between_nodes_predicted: f64,
    /// Grains that the nodes say they have sent.
    pub(crate) between_nodes_measured: f64,
}

/// How often the durable store was read.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OriginFacts {
    pub(crate) bytes_read: u64,
    pub(crate) per_dataset: f64,
}

/// How much of the exchange training noticed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ExchangeFacts {
    pub(crate) bytes_sent: u64,
    pub(crate) busy_s: f64,
    /// Time a loader waited for grains that were still on their way.
    pub(crate) exposed_s: f64,
    /// Grains that were not yet where they were wanted, and came from another node.
    pub(crate) misses_from_peers: u64,
    /// The same, from the durable store.
    pub(crate) misses_from_origin: u64,
}

impl Report {
    /// Whether every epoch passed its audit and all ranks agreed.
    pub(crate) fn is_exactly_once(&self) -> bool {
        self.epochs.iter().all(|epoch| epoch.exactly_once)
    }

    /// The report for a person, some twenty lines.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            if value.is_empty() {
                return;
            }
            out.push_str(&format!("  {name:<15} {value}\n"));
        };
        line("data", self.data_line());
        line("plan", self.plan_line());
        line("cluster", self.cluster_line());
        line("test accuracy", self.accuracy_line());
        line("loss", self.loss_line());
        line("speed", self.speed_line());
        line("exactly once", self.audit_line());
        line("moved", self.moved_line());
        line("", self.moved_nodes_line());
        line("origin", self.origin_line());
        line("exchange", self.exchange_line());
        line("on demand", self.misses_line());
        line("weights", format!("blake3 {}", self.weights_digest));
        out
    }

    fn data_line(&self) -> String {
        let data = &self.dataset;
        format!(
            "{}, {} in {} ({}), {} held out",
            data.name,
            plural(data.samples, "sample"),
            plural(data.shards, "shard"),
            ByteSize(data.bytes),
            count(data.test_samples)
        )
    }

    fn plan_line(&self) -> String {
        let plan = &self.plan;
        let grain = plural(plan.grain_rows.into(), "sample");
        format!("{}, Q = {}, {} partitions, grains of {grain}", short(&plan.id), plan.q, plan.partitions)
    }

    fn cluster_line(&self) -> String {
        let killed = match self.killed.as_slice() {
            [] => String::new(),
            killed => format!("; killed {}", killed.join(", ")),
        };
        let nodes = plural(self.nodes.into(), "node");
        let ranks = plural(self.ranks.into(), "trainer");
        format!("{nodes}, {ranks}, {} virtual ranks{killed}", self.virtual_ranks)
    }

    fn accuracy_line(&self) -> String {
        self.test_accuracy
            .map_or_else(|| "nothing was held out".into(), |accuracy| format!("{:.2} %", accuracy * 100.0))
    }

    fn loss_line(&self) -> String {
        let losses: Vec<f64> = self.epochs.iter().map(|epoch| epoch.loss).collect();
        // Losses fall by orders of magnitude: their logarithms make the better picture.
        let curve: Vec<f64> = losses.iter().map(|loss| loss.ln()).collect();
        match losses.as_slice() {
            [] => String::new(),
            [first, .., last] => {
                format!("{}  {first:.3} -> {last:.4} in {} epochs", sparkline(&curve), losses.len())
            }
            [only] => format!("{only:.3} in 1 epoch"),
        }
    }

    fn speed_line(&self) -> String {
        let seconds = |s: f64| duration(Duration::from_secs_f64(s.max(0.0)));
        format!(
            "{} samples/s; training {}, everything {}",
            count(self.samples_per_s.max(0.0).round() as u64),
            seconds(self.training_s),
            seconds(self.total_s)
        )
    }

    fn audit_line(&self) -> String {
        let bad: Vec<String> = self
            .epochs
            .iter()
            .filter(|epoch| !epoch.exactly_once)
            .map(|epoch| {
                format!("epoch {}: {} of {}", epoch.epoch, count(epoch.samples), count(self.dataset.samples))
            })
            .collect();
        if bad.is_empty() {
            let epochs = plural(self.epochs.len() as u64, "epoch");
            let samples = count(self.dataset.samples);
            format!("yes: {epochs} of {samples} samples, count and digest sum equal the manifest's in each")
        } else {
            format!("NO: {}", bad.join("; "))
        }
    }

    fn moved_line(&self) -> String {
        if self.moved.exchanges == 0 {
            return "nothing: one epoch has no exchange".into();
        }
        format!(
            "between partitions {} per epoch predicted, {} by the plan",
            percent(self.moved.between_partitions_predicted),
            percent(self.moved.between_partitions_planned)
        )
    }

    fn moved_nodes_line(&self) -> String {
        if self.moved.exchanges == 0 {
            return String::new();
        }
        if self.nodes < 2 {
            return "between nodes nothing: there is one".into();
        }
        let with_refills = if self.killed.is_empty() { "" } else { " (a death moves partitions too)" };
        format!(
            "between nodes {} per epoch predicted, {} measured{with_refills}",
            percent(self.moved.between_nodes_predicted),
            percent(self.moved.between_nodes_measured)
        )
    }

    fn origin_line(&self) -> String {
        format!(
            "{} read for a dataset of {} in {} epochs: {:.2} x",
            ByteSize(self.origin.bytes_read),
            ByteSize(self.dataset.bytes),
            self.epochs.len(),
            self.origin.per_dataset
        )
    }

    fn exchange_line(&self) -> String {
        let exchange = &self.exchange;
        if exchange.bytes_sent == 0 {
            return String::new();
        }
        let hidden = 1.0 - (exchange.exposed_s / exchange.busy_s.max(1e-9)).clamp(0.0, 1.0);
        let busy = duration(Duration::from_secs_f64(exchange.busy_s.max(0.0)));
        format!("{} in {busy}, {} hidden behind training", ByteSize(exchange.bytes_sent), percent(hidden))
    }

    /// Cold caches at the start, late exchanges and lost nodes all show here, and cost only time.
    fn misses_line(&self) -> String {
        let (peers, origin) = (self.exchange.misses_from_peers, self.exchange.misses_from_origin);
        match peers + origin {
            0 => String::new(),
            _ => format!("{} from other nodes, {} from the store", plural(peers, "grain"), count(origin)),
        }
    }
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let epoch = |epoch, loss| EpochFacts {
            epoch,
            loss,
            samples: 1437,
            digest_sum: "0f".repeat(16),
            exactly_once: true,
        };
        Report {
            dataset: DatasetFacts {
                name: "digits".into(),
                version: "ab".repeat(32),
                samples: 1437,
                test_samples: 360,
                shards: 7,
                bytes: 150 << 10,
            },
            plan: PlanFacts { id: "cd".repeat(32), q: "0.1".into(), partitions: 16, grain_rows: 1 },
            nodes: 4,
            ranks: 4,
            virtual_ranks: 4,
            killed: vec![],
            test_accuracy: Some(0.975),
            weights_digest: "ef".repeat(32),
            samples_per_s: 4321.4,
            loader_wait_s: 0.1,
            epochs: vec![epoch(0, 1.5), epoch(1, 0.5), epoch(2, 0.125)],
            moved: MovedFacts {
                exchanges: 2,
                between_partitions_predicted: 0.09375,
                between_partitions_planned: 0.0921,
                between_nodes_predicted: 0.0744,
                between_nodes_measured: 0.0744,
            },
            origin: OriginFacts { bytes_read: 150 << 10, per_dataset: 1.0 },
            exchange: ExchangeFacts {
                bytes_sent: 90 << 10,
                busy_s: 0.25,
                exposed_s: 0.0,
                misses_from_peers: 12,
                misses_from_origin: 0,
            },
            node_status: vec![],
            training_s: 9.8,
            total_s: 12.3,
        }
    }

    #[test]
    fn a_good_run_reads_well() {
        let expected = "  data            digits, 1,437 samples in 7 shards (150.0 KiB), 360 held out
  plan            cdcdcdcdcdcd, Q = 0.1, 16 partitions, grains of 1 sample
  cluster         4 nodes, 4 trainers, 4 virtual ranks
  test accuracy   97.50 %
  loss            █▅▁  1.500 -> 0.1250 in 3 epochs
  speed           4,321 samples/s; training 9.8 s, everything 12.3 s
  exactly once    yes: 3 epochs of 1,437 samples, count and digest sum equal the manifest's in each
  moved           between partitions 9.4 % per epoch predicted, 9.2 % by the plan
                  between nodes 7.4 % per epoch predicted, 7.4 % measured
  origin          150.0 KiB read for a dataset of 150.0 KiB in 3 epochs: 1.00 x
  exchange        90.0 KiB in 250 ms, 100.0 % hidden behind training
  on demand       12 grains from other nodes, 0 from the store
  weights         blake3 efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef
";
        assert_eq!(report().render(), expected);
    }

    #[test]
    fn a_lost_sample_is_shouted() {
        let mut report = report();
        report.epochs[1].samples = 1436;
        report.epochs[1].exactly_once = false;
        report.killed = vec!["n2 at epoch 1.5".into()];
        assert!(!report.is_exactly_once());
        let page = report.render();
        assert!(page.contains("exactly once    NO: epoch 1: 1,436 of 1,437\n"), "{page}");
        assert!(page.contains("4 virtual ranks; killed n2 at epoch 1.5\n"), "{page}");
    }

    #[test]
    fn one_node_exchanges_nothing_and_says_so() {
        let mut report = report();
        report.nodes = 1;
        report.exchange.bytes_sent = 0;
        report.test_accuracy = None;
        let page = report.render();
        assert!(page.contains("between nodes nothing: there is one\n"), "{page}");
        assert!(page.contains("cluster         1 node, 4 trainers"), "{page}");
        assert!(page.contains("test accuracy   nothing was held out\n"), "{page}");
        assert!(!page.contains("  exchange "), "{page}");
    }
}
