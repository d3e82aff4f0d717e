//! `shardtrain rerun` and `shardtrain bisect`: trains again what a record tells of, and finds where two trainings part.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Parser;
use shardd_api::protocol::RunId;
use shardd_store::record::compare;
use shardd_trainer::checkpoint::Resume;

use crate::args::{Args, OnBad, Seat, UsageError};
use crate::expected::{Expected, LossesWanted};
use crate::session::train;
use crate::tls::TlsArgs;

type Failure = Box<dyn Error>;

/// Repeat a recorded training, and check that every step is bit-equal
///
/// Reads the data from --server, --store or --context, which may differ from those of the record. Start one process for each rank; the number of ranks may
/// differ from the record's. Ends with the last step of the record, or at the first step that differs. Exit codes: 0 equal, 1 different,
/// 2 not compared, 3 another rank is lost or late.
#[derive(clap::Args, Debug)]
pub(crate) struct Rerun {
    /// Record: its id, a unique prefix of it, or the name of a run with a single record
    id: String,

    /// Directory or bucket of the record, as given to --record or --checkpoints
    #[arg(long, value_name = "DIR|URL")]
    record: PathBuf,

    /// Name of the new run at the nodes
    #[arg(long, value_name = "NAME", default_value = "rerun")]
    run: RunId,

    /// Rank of this process, from 0 [default: as torchrun, Slurm or MPI set it, else 0]
    #[arg(long)]
    rank: Option<u32>,

    /// Number of ranks [default: as torchrun, Slurm or MPI set it, else 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    world: Option<u32>,

    /// Rendezvous address, where rank 0 listens [default: $MASTER_ADDR:$MASTER_PORT; else published through the nodes; with a store
    /// on the first host of a Slurm step, or 127.0.0.1:29500]
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<String>,

    /// Seconds to wait for all ranks to join
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    join_timeout: u64,

    /// Seconds that a step waits for a rank before it fails
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,

    #[command(flatten)]
    tls: TlsArgs,

    /// Number of compute threads [default: RAYON_NUM_THREADS, or one per processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,

    /// Write a JSON line after every step, to a file or standard output (-)
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,

    /// Write a report of the finished training as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Directory or bucket for the checkpoints of --on-bad-step rollback; must hold none of --run
    #[arg(long, value_name = "DIR|URL")]
    checkpoints: Option<PathBuf>,

    /// Seconds between progress lines of rank 0 on standard error; 0 disables them [default: 10 on a terminal, else 0]
    #[arg(long, value_name = "SECONDS")]
    log_every_s: Option<u64>,

    /// Train to this step of the record, counted from 0, and print the loss of each of its samples; begins at the last
    /// checkpoint before it that lies beside the record
    #[arg(long, value_name = "STEP")]
    sample_losses: Option<u64>,

    /// Print the losses as JSON
    #[arg(long, requires = "sample_losses")]
    json: bool,

    /// Save the losses beside the record as well: the page of its run in the console shows them
    #[arg(long, requires = "sample_losses")]
    save: bool,
}

/// Find the first step in which two recorded trainings differ: which virtual ranks, and which values
///
/// Exit codes: 0 equal, 1 different, 2 not compared.
#[derive(clap::Args, Debug)]
pub(crate) struct Bisect {
    /// First record: its id, a unique prefix of it, or the name of a run with a single record
    a: String,

    /// Second record
    b: String,

    /// Directory or bucket of the records
    #[arg(long, value_name = "DIR|URL")]
    record: PathBuf,

    /// Directory or bucket of the second record, if it differs
    #[arg(long, value_name = "DIR|URL")]
    other: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Rerun {
    /// The rank of this process, for messages; 0 if its environment has none.
    pub(crate) fn rank(&self) -> u32 {
        Seat::of(self.rank, self.world).map_or(0, |seat| seat.rank)
    }
}

/// Trains again: 0 if all is the same.
pub(crate) fn rerun(rerun: &Rerun, said: &Args) -> Result<u8, Failure> {
    let Seat { rank, world, place } = Seat::of(rerun.rank, rerun.world)?;
    let mut expected = Expected::open(&rerun.record, &rerun.id, &rerun.run, said)?;
    if let Some(step) = rerun.sample_losses {
        if world > 1 {
            return Err(UsageError(
                "--sample-losses needs one rank, which then reads all samples".to_owned(),
            )
            .into());
        }
        let wanted = LossesWanted { json: rerun.json, save: rerun.save };
        expected = expected.with_step_losses(step, wanted, &rerun.record, said)?;
    }
    let record = &expected.record;
    let fixed = [
        "shardtrain".to_owned(),
        format!("--plan={}", record.data.plan),
        format!("--virtual-ranks={}", record.virtual_ranks),
    ];
    let again = Args::try_parse_from(fixed.iter().chain(&record.arguments)).map_err(|error| {
        let (id, said) = (expected.id.short(), error.to_string());
        let version = record.launches.last().map_or("another version", |launch| &launch.version);
        let first = said.lines().next().unwrap_or_default();
        format!("record {id} was written by {version}, whose settings this program does not know ({first}); use that one")
    })?;
    let goes_back = again.on_bad_step == OnBad::Rollback;
    let again = Args {
        checkpoints: rerun.checkpoints.clone().filter(|_| goes_back),
        checkpoint_every: again.checkpoint_every.filter(|_| goes_back),
        resume: Resume::Never,
        connect: said.connect.clone(),
        run: rerun.run.clone(),
        rank,
        world,
        place,
        master: rerun.master.clone(),
        join_timeout: rerun.join_timeout,
        timeout: rerun.timeout,
        tls: rerun.tls.clone(),
        threads: rerun.threads,
        progress: rerun.progress.clone(),
        report: rerun.report.clone(),
        log_every_s: rerun.log_every_s,
        ..again
    };
    train(&again, Some(&expected))?;
    Ok(0)
}

/// Compares two records: 0 if they are the same, 1 if not.
pub(crate) fn bisect(bisect: &Bisect, said: &Args) -> Result<u8, Failure> {
    let run: RunId = "bisect".parse()?; // of no matter
    let a = Expected::open(&bisect.record, &bisect.a, &run, said)?;
    let b = Expected::open(bisect.other.as_ref().unwrap_or(&bisect.record), &bisect.b, &run, said)?;
    let (these, those) = (a.shelf.records(), b.shelf.records());
    let compared = compare((&these, &a.record), (&those, &b.record));
    let compared = a.shelf.handle().block_on(compared)?;
    let text = match bisect.json {
        true => {
            let (a, b) = (a.id, b.id);
            format!(
                "{}\n",
                serde_json::json!({ "a": a, "b": b, "same": compared.is_same(), "difference": compared })
            )
        }
        false => compared.to_string(),
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    if compared.steps[0] >= compared.steps[1] {
        return Err(UsageError("the records have no step in common".to_owned()).into());
    }
    Ok(u8::from(!compared.is_same()))
}
