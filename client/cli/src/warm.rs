//! `shardctl warm`: fills caches before the trainers come, as their attaching would.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use shardd_api::drain::NodeState;
use shardd_api::explain::{PlacementExplained, Waits};
use shardd_api::protocol::{Attach, CreateRun, Cursor, RunId, RunRecord, RunView};
use shardd_api::status::Filled;
use shardd_store::connect::{Connect, find_plan};
use shardd_store::http::{HttpClient, HttpError};

use crate::failure::Failure;
use crate::human::{count, parse_duration};
use crate::nodes::live_nodes;
use crate::{output, signals};

/// How often it is looked how far it is, at most.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Fill the nodes' caches before the trainers start: they then find their samples on local disks
///
/// Attaches a rank to each node that is not drained, in the order of their names, as a trainer would; waits until each node has
/// its partitions; and detaches. Each shard is read from the store by one node, once. Trainers whose ranks
/// read at the same nodes find everything there; others have partitions moved, from node to node. The fetched
/// grains may be evicted when a run that is being read needs the room. The run that is made stays, as every
/// run does, and the plan and the version with it.
#[derive(Args)]
pub(crate) struct Warm {
    /// A run without readers; or a dataset, version or plan, as `plan show --plan` takes it: then a run is
    /// made
    #[arg(value_name = "RUN|DATASET|PLAN")]
    target: String,

    /// The name of the run that is made [default: warm- and the beginning of the plan's id]. With that of the training to
    /// come, it is the training's
    #[arg(long, value_name = "NAME", requires = "virtual_ranks")]
    run: Option<RunId>,

    /// Number of virtual ranks of that run
    #[arg(long, requires = "run")]
    virtual_ranks: Option<u32>,

    /// The epoch that the trainers begin in [default: that of the run's cursor, else 0]
    #[arg(long)]
    epoch: Option<u32>,

    /// Wait at most this time, such as 90s, 10m or 1h; the fetched grains stay
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    timeout: Duration,
}

impl Warm {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let (server, http) = (servers.first_that_answers(), servers.http());
        let nodes = live_nodes(&http, server)?;
        let nodes: Vec<String> =
            nodes.into_iter().filter(|node| node.draining.is_none()).map(|node| node.record.http).collect();
        if nodes.is_empty() {
            return Err(Failure::failed("all nodes are drained: let one host with `shardctl join NODE`"));
        }
        let run = self.open(connect, server, &http)?;
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => match http.get_json::<Cursor>(&format!("{server}/v1/runs/{}/cursor", run.id)) {
                Ok(cursor) => cursor.epoch,
                Err(HttpError::Problem { status: 404, .. }) => 0,
                Err(error) => return Err(error.into()),
            },
        };
        let world = nodes.len().min(run.virtual_ranks as usize);
        let ranks = Ranks { http: http.clone(), run: run.id.clone(), nodes: nodes[..world].to_vec() };
        let leaving = ranks.clone();
        signals::at_first(move || {
            leaving.detach();
            output::error(json, "interrupted; the fetched grains stay", 130);
            std::process::exit(130);
        })?;
        let warmed = ranks.attach(epoch).and_then(|()| self.follow(server, &http, &run.id, json));
        ranks.detach();
        warmed
    }

    /// The run that is filled for.
    fn open(&self, connect: &Connect, server: &str, http: &HttpClient) -> Result<RunRecord, Failure> {
        let known = match self.target.parse::<RunId>() {
            Ok(id) => match http.get_json::<RunView>(&format!("{server}/v1/runs/{id}")) {
                Ok(view) => Some(view.run),
                Err(HttpError::Problem { status: 404, .. }) => None,
                Err(error) => return Err(error.into()),
            },
            Err(_) => None,
        };
        if let (Some(run), None) = (&known, &self.run) {
            refuse_if_read(server, http, &run.id)?;
            return Ok(run.clone());
        }
        let catalog = connect.catalog()?;
        let plan = find_plan(&*catalog, Some(&self.target))?;
        let (id, virtual_ranks) = match (&self.run, self.virtual_ranks) {
            (Some(id), Some(virtual_ranks)) => (id.clone(), virtual_ranks),
            _ => {
                let id = format!("warm-{}", plan.short()).parse().map_err(Failure::wrong)?;
                (id, catalog.plan(plan)?.partitions)
            }
        };
        let create = CreateRun { id, plan, virtual_ranks };
        let run: RunRecord = http.post_json(&format!("{server}/v1/runs"), &create)?;
        // A holder of the run's own name has it for this: an earlier one that was cut off is no trainer.
        if self.run.is_some() {
            refuse_if_read(server, http, &run.id)?;
        }
        Ok(run)
    }

    /// Waits until all hosts have their partitions.
    fn follow(&self, server: &str, http: &HttpClient, run: &RunId, json: bool) -> Result<(), Failure> {
        let until = Instant::now() + self.timeout;
        let mut last = Vec::new();
        loop {
            let began = Instant::now();
            let placed: PlacementExplained = http.get_json(&format!("{server}/v1/runs/{run}/placement"))?;
            let nodes = live_nodes(http, server)?;
            let hosts = nodes.iter().filter(|node| placed.nodes.iter().any(|of| of.node == node.record.id));
            let ask = |node: &NodeState| http.get_json(&format!("{}/v1/runs/{run}/filled", node.record.http));
            let filled: Vec<Filled> = hosts.map(ask).collect::<Result<_, _>>()?;
            let held: Vec<u64> = filled.iter().map(|of| of.held_grains).collect();
            if held != last {
                last = held;
                filled.iter().filter(|of| of.hosted_grains > 0).for_each(|of| say(of, json));
            }
            let is_settled = placed.moves.is_empty() && placed.waits != Some(Waits::Copying);
            if is_settled && filled.iter().all(|of| of.is_done && of.generation == placed.generation) {
                return end(run, &filled, json);
            }
            if Instant::now() > until {
                return Err(Failure::failed(format!(
                    "not all nodes have their grains of run {run} after {:?}; the fetched grains stay: warm \
                    again to continue",
                    self.timeout
                )));
            }
            // To look takes a node time, too.
            sleep(POLL_INTERVAL.max(began.elapsed() * 4));
        }
    }
}

/// A run with ranks fills its caches by itself, and must not have others attached to it.
fn refuse_if_read(server: &str, http: &HttpClient, run: &RunId) -> Result<(), Failure> {
    let placed: PlacementExplained = http.get_json(&format!("{server}/v1/runs/{run}/placement"))?;
    match placed.waits {
        Some(Waits::NoRanks) => Ok(()),
        _ => Err(Failure::failed(format!(
            "ranks of run {run} are attached, so its nodes fill their caches by themselves; those of a killed trainer stay attached until it starts again"
        ))),
    }
}

/// One rank a node.
#[derive(Clone)]
struct Ranks {
    http: HttpClient,
    run: RunId,
    nodes: Vec<String>,
}

impl Ranks {
    /// Together: each waits for the others.
    fn attach(&self, epoch: u32) -> Result<(), Failure> {
        let attach = Attach { world: self.nodes.len() as u32, epoch };
        let attached = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.nodes.len())
                .map(|rank| {
                    scope.spawn(move || self.http.post_json::<_, RunView>(&self.url(rank), &attach).map(drop))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Vec<_>>()
        });
        Ok(attached.into_iter().collect::<Result<(), HttpError>>()?)
    }

    /// A node that cannot be notified finds out by itself, as with a trainer that was killed.
    fn detach(&self) {
        for rank in 0..self.nodes.len() {
            let _ = self.http.delete(&self.url(rank));
        }
    }

    fn url(&self, rank: usize) -> String {
        format!("{}/v1/runs/{}/ranks/{rank}", self.nodes[rank], self.run)
    }
}

fn say(filled: &Filled, json: bool) {
    let Filled { node, hosted_grains, held_grains, .. } = filled;
    match json {
        true => output::json(filled),
        false => {
            output::print(&format!(
                "{node} has {} of {} grains\n",
                count(*held_grains),
                count(*hosted_grains)
            ));
        }
    }
}

fn end(run: &RunId, filled: &[Filled], json: bool) -> Result<(), Failure> {
    let lacking: u64 = filled.iter().map(|of| of.hosted_grains - of.held_grains.min(of.hosted_grains)).sum();
    match json {
        true => output::json(&json!({ "run": run, "done": true, "lacking_grains": lacking })),
        false => output::print(&format!("caches are filled for run {run}\n")),
    }
    if lacking > 0 {
        let text = format!("{} grains had no room or could not be read: they will be missed", count(lacking));
        output::note(json, &text);
    }
    Ok(())
}
