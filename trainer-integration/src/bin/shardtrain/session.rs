//! From arguments to a finished training: finds the plan, joins the other ranks, opens the loader, trains, writes. With a launcher that lets
//! ranks stay, it joins one group of ranks after the other (`stay.rs`).

mod shares;
mod stay;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::datatypes::{DataType, Field};
use serde_json::json;
use shardd_api::protocol::{RunId, UnsentReports};
use shardd_client::loader::{BatchSize, Loader, LoaderConfig, LoaderSource, Transforms};
use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
use shardd_store::catalog::{Catalog, CatalogError};
use shardd_store::connect::{Servers, Target, catalog_of, find_plan, find_version};
use shardd_store::record::Data;
use shardd_trainer::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, Checkpoints, Resume, StopFlag, hand_over, load,
};
use shardd_trainer::cluster::{CatalogRows, timelines};
use shardd_trainer::collective::tcp::{TcpOptions, connect, connect_through_nodes};
use shardd_trainer::collective::{Collective, threads};
use shardd_trainer::data::{Augmentation, Rows};
use shardd_trainer::elastic::{Origin, Reforming};
use shardd_trainer::error::TrainError;
use shardd_trainer::launch_env::{end_with, stop_on_signals};
use shardd_trainer::record::{About, Purpose, Recording};
use shardd_trainer::trace::{Tracer, node_events};
use shardd_trainer::train::{
    OnBadStep, Outcome, Persistence, Progress, Start, StateTransfer, TrainConfig, agree, train_with,
};
use shardd_trainer::weights::Weights;
use shardd_transforms::{Layout, OnError};
use shardfmt::{DatasetRef, Manifest, PlanId, VersionId};
use tracing::warn;

use crate::args::{Args, TransportName, UsageError};
use crate::expected::Expected;
use crate::log_to::{Curves, Ending, Facts, Run, is_restart};
use crate::output::{Observer, Report, check_outputs, plural, save, tell_stopped, write_report, write_trace};
use shares::Shares;

type Failure = Box<dyn Error>;

/// One rank, from its arguments to its report: the exit code.
pub(crate) fn run(args: &mut Args) -> Result<u8, Failure> {
    let ended = match stay::member()? {
        Some(member) => stay::run(args, member)?,
        None => train(args, None)?,
    };
    // Its launcher has been sent the signal too, and ends with the code.
    let is_own = args.launched_by.is_none();
    Ok(if is_own && matches!(ended, Ended::Stopped) { args.stopped_exit_code } else { 0 })
}

/// As one rank of one group; compared with a record, if there is one.
pub(crate) fn train(args: &Args, expected: Option<&Expected>) -> Result<Ended, Failure> {
    args.check()?;
    check_outputs(args)?;
    if let Some(launcher) = args.launched_by {
        end_with(launcher)?;
    }
    let session = Session::open(args, expected)?;
    let mut curves = Curves::default();
    session.open_logs(args, &mut curves, is_restart())?;
    let mut observer = Observer::open(args, &mut curves)?;
    let group = Group {
        collective: join(args, &session.target)?,
        has_begun: &Cell::new(false),
        pause: None,
        legacy: None,
        history: Vec::new(),
        goes_on: &mut |_, _| None,
    };
    let ended = session.train(args, group, &mut observer);
    curves.end(Ended::for_logs(&ended));
    ended
}

/// A rank's state apart from the group it trains with.
struct Session<'a> {
    began: SystemTime,
    expected: Option<&'a Expected>,
    data: Data,
    plan_id: PlanId,
    plan: Plan,
    manifest: Manifest,
    init: Option<Weights>,
    checkpoints: Option<Checkpoints>,
    recording: Option<Recording>,
    stop: StopFlag,
    test: Option<CatalogRows>,
    tracer: Tracer,
    /// The nodes or the store.
    target: Target,
    /// The nodes that were heard of: one that was not named may be the only one left.
    known: RefCell<Vec<String>>,
}

/// The ranks it trains with, and how.
struct Group<'a> {
    collective: Box<dyn Collective>,
    /// Whether this process has been in a group that began to train, or is in one now.
    has_begun: &'a Cell<bool>,
    /// Asks them to pause, where that can be.
    pause: Option<StopFlag>,
    /// This rank's state of the group before, and the place for its state of this one.
    legacy: Option<StateTransfer>,
    /// How the groups were formed that this rank was in.
    history: Vec<Reforming>,
    /// Gets a call after every step, and at the end, and reports once how the group was formed.
    goes_on: &'a mut GoesOn<'a>,
}

type GoesOn<'a> = dyn FnMut(GoingOn, Option<&Progress>) -> Option<Reforming> + Send + 'a;

/// Compares the state with which ranks continue together, before the training compares its settings: from
/// where, for all of them. What there was to begin with is not what there is once any of them has begun.
fn agree_to_begin(args: &Args, collective: &mut dyn Collective, has_begun: bool) -> Result<Resume, Failure> {
    let (slicing, resume) = (args.slicing(), format!("{:?}", args.resume));
    let checkpoints = match (&args.checkpoints, args.checkpoint_every) {
        (None, _) => json!("none"),
        (Some(_), None) => json!("now and then"),
        (Some(_), Some(every)) => json!(every),
    };
    let zero = [json!(slicing.zero), json!(slicing.group)];
    let mine = json!({ "zero": zero, "checkpoints": checkpoints, "resume": resume });
    agree(collective, &mine).inspect_err(|error| collective.abort(&error.to_string()))?;
    let all = collective.all_gather(&[u8::from(has_begun)])?;
    let is_first = all.iter().all(|has_begun| has_begun.bytes() == [0]);
    Ok(if is_first { args.resume.clone() } else { Resume::Auto })
}

/// The place where a training resumed.
#[derive(Clone, Copy, Debug)]
struct GoingOn {
    /// After this number of steps.
    step: u64,
    state: Origin,
}

/// How training in a group ended.
pub(crate) enum Ended {
    /// It is over, and its results are written.
    Trained,
    /// A signal has ended it, after a checkpoint.
    Stopped,
    /// It has paused.
    Paused,
}

impl Ended {
    /// The same for logs, if nothing follows.
    fn for_logs(ended: &Result<Ended, Failure>) -> Ending {
        match ended {
            Ok(Ended::Trained) => Ending::Trained,
            Ok(Ended::Stopped | Ended::Paused) => Ending::Stopped,
            Err(_) => Ending::Failed,
        }
    }
}

impl<'a> Session<'a> {
    fn open(args: &Args, expected: Option<&'a Expected>) -> Result<Session<'a>, Failure> {
        let began = SystemTime::now();
        // A signal may come before the training begins: it then stops after its first step.
        let stop = match args.checkpoints {
            Some(_) => stop_on_signals(args.launched_by.is_some())?,
            None => StopFlag::default(),
        };
        args.device.open()?;
        let target = args.connect.target_beside_stores()?;
        let catalog = catalog_of(&target).map_err(|error| match expected {
            Some(expected) => expected.lacks(&error),
            None => error.into(),
        })?;
        let plan_id = plan_to_train(&*catalog, args)?;
        let lacks = |error: CatalogError| match expected {
            Some(expected) => expected.lacks(&error),
            None => error.into(),
        };
        let document = catalog.plan(plan_id).map_err(lacks)?;
        let manifest = catalog.manifest(document.version).map_err(lacks)?;
        let plan = Plan::new(document, &shard_rows(&manifest))?;
        // A run keeps its virtual ranks: those of its checkpoint are known only when that is read.
        if args.checkpoints.is_none() || args.virtual_ranks.is_some() {
            Shares::of(args, &plan, None)?;
        }
        let init = args.init.as_deref().map(first_weights).transpose()?;
        let checkpoints =
            args.checkpoints.as_deref().map(|place| open_checkpoints(place, args)).transpose()?;
        let data = data(dataset_of(&*catalog, args, plan_id), &plan, &manifest);
        let recording = match expected {
            Some(expected) => Some(expected.recording()),
            None => recording(args, checkpoints.as_ref(), data.clone())?,
        };
        let test = open_test(catalog, args, &manifest)?;
        let tracer = if args.trace.is_some() { Tracer::on() } else { Tracer::off() };
        Ok(Session {
            began,
            expected,
            data,
            plan_id,
            plan,
            manifest,
            init,
            checkpoints,
            recording,
            stop,
            test,
            tracer,
            target,
            known: RefCell::default(),
        })
    }

    /// Opens the logs of the training on rank 0; see [`Curves::open`].
    fn open_logs(&self, args: &Args, curves: &mut Curves, restarts: bool) -> Result<(), Failure> {
        if args.rank > 0 || args.log_to.is_empty() {
            return Ok(());
        }
        let Data { dataset, version, plan, q, seed, samples } = self.data.clone();
        let facts = json!({
            "run": args.run, "version": version, "plan": plan, "q": q, "plan_seed": seed, "samples": samples,
        });
        let mut facts: Facts = serde_json::from_value(facts)?;
        facts.extend(dataset.map(|name| ("dataset".to_owned(), name.into())));
        facts.extend(args.settings.clone());
        let run = Run::new(&args.run, plan, args.checkpoints.is_some());
        Ok(curves.open(&args.log_to, &run, &facts, restarts)?)
    }

    /// Trains on with these ranks.
    fn train(&self, args: &Args, group: Group<'_>, observer: &mut Observer<'_>) -> Result<Ended, Failure> {
        let Group { mut collective, has_begun, pause, legacy, mut history, goes_on } = group;
        let resume = agree_to_begin(args, &mut *collective, has_begun.get())?;
        let handed = match &legacy {
            Some(legacy) => self.hand_over(args, &mut *collective, legacy)?,
            None => None,
        };
        let is_handed = handed.is_some();
        let checkpoint = match (handed, &self.checkpoints) {
            (Some(handed), _) => Some(handed),
            (None, None) => self.recorded_checkpoint(args, &mut *collective)?,
            (None, Some(kept)) => load(&mut *collective, &kept.shelf, &resume, args.slicing())?,
        };
        has_begun.set(true);
        let manifest_of =
            |checkpoint: &Checkpoint| (checkpoint.manifest.virtual_ranks, checkpoint.manifest.place);
        let (kept, begin) = checkpoint.as_ref().map(manifest_of).unzip();
        let shares =
            Shares::of(args, &self.plan, kept).inspect_err(|error| collective.abort(&error.to_string()))?;
        let Shares { virtual_ranks, global_batch } = shares;
        let begin = begin.unwrap_or_default();
        if (begin.epoch, begin.position) > (args.epochs, 0) {
            let error = UsageError(format!(
                "the checkpoint is after --epochs {}: give at least {}, or another --run",
                args.epochs,
                begin.epoch + u32::from(begin.position > 0)
            ));
            collective.abort(&error.to_string());
            return Err(error.into());
        }
        // With another number of virtual ranks the checkpoint is refused when settings are compared.
        let of_these = checkpoint.as_ref().filter(|it| it.manifest.virtual_ranks == virtual_ranks);
        let delivered = of_these.map(|it| it.manifest.progress.delivered.clone());
        let step = checkpoint.as_ref().map(|checkpoint| checkpoint.manifest.step);
        let config = LoaderConfig {
            start: (begin.epoch, begin.position),
            delivered: delivered.unwrap_or_default(),
            rank: args.rank,
            world: args.world,
            virtual_ranks: Some(virtual_ranks),
            last_batch: args.last_batch(),
            end_epoch: args.epochs,
            audit: !args.no_audit,
            transforms: transforms(args)?,
            ..LoaderConfig::new(
                source(&self.target, &args.run, &self.known.borrow()),
                self.plan_id,
                BatchSize::Global(global_batch),
            )
        };
        let mut loader = Loader::open(config).inspect_err(|error| collective.abort(&crate::chain(error)))?;
        self.known.replace(loader.nodes());

        let config = self.config(args, shares);
        let test = self.test.as_ref().map(|rows| rows as &dyn Rows);
        let (start, state) = match (checkpoint, &self.init) {
            (Some(checkpoint), _) => {
                let state = if is_handed { Origin::Ranks } else { Origin::Checkpoint };
                (Start::Checkpoint(Box::new(checkpoint)), state)
            }
            (None, Some(weights)) if args.init_skip.is_empty() => {
                (Start::Weights(weights.clone()), Origin::Beginning)
            }
            (None, Some(weights)) => {
                let (weights, skip) = (weights.clone(), args.init_skip.clone());
                (Start::Partly { weights, skip }, Origin::Beginning)
            }
            (None, None) => (Start::Seed, Origin::Beginning),
        };
        let persistence = Persistence {
            start,
            checkpoints: self.checkpoints.clone(),
            stop: self.stop.clone(),
            pause,
            legacy,
            tracer: Some(self.tracer.clone()),
            recording: self.recording.clone(),
            step_losses: self.expected.and_then(Expected::step_losses),
        };
        let going_on = GoingOn { step: step.unwrap_or_default(), state };
        observer.describe(&Facts::from_iter([("virtual_ranks".to_owned(), virtual_ranks.into())]));
        let mut observe = |progress: Progress| {
            if let Some(formed) = goes_on(going_on, Some(&progress)) {
                observer.note(formed.clone());
                history.push(formed);
            }
            observer.step(&progress);
        };
        let outcome = train_with(&config, persistence, collective, &mut loader, test, &mut observe)?;
        let trained = match outcome {
            Outcome::Trained(trained) => trained,
            Outcome::Paused(_) => return Ok(Ended::Paused),
            Outcome::Stopped(stopped) => {
                leave(args, loader)?;
                self.trace(args, stopped.trace)?;
                match self.expected {
                    Some(expected) => expected.tell(args, stopped.steps, &self.plan)?,
                    None => tell_stopped(args, stopped.steps, stopped.of),
                }
                return Ok(Ended::Stopped);
            }
        };
        history.extend(goes_on(going_on, None)); // there may have been no step left
        let resumed_from = step.filter(|_| !is_handed);
        let report = Report::new(args, self.plan_id, virtual_ranks, resumed_from, &trained, &history);
        if args.rank == 0
            && let Some((path, weights)) = args.save.as_ref().zip(trained.weights.as_ref())
        {
            save(path, weights)?;
        }
        if let Some(path) = &args.report {
            write_report(path, &report)?;
        }
        // The trained weights are safe now.
        self.trace(args, trained.trace.clone())?;
        leave(args, loader)?;
        match self.expected {
            Some(expected) => expected.tell(args, trained.steps, &self.plan)?,
            None if resumed_from == Some(trained.steps) => observer.already_trained(&report),
            None => observer.finish(&report),
        }
        match trained.unevaluated {
            None => Ok(Ended::Trained),
            Some(error) => Err(Unevaluated(error).into()),
        }
    }

    /// The checkpoint of the recorded training that a replay of one step begins with, if it can be read.
    fn recorded_checkpoint(
        &self,
        args: &Args,
        collective: &mut dyn Collective,
    ) -> Result<Option<Checkpoint>, Failure> {
        let Some((shelf, step)) = self.expected.and_then(Expected::checkpoint) else { return Ok(None) };
        match load(collective, shelf, &Resume::Step(*step), args.slicing()) {
            Err(CheckpointError::NoneWhole { reasons, .. }) => {
                warn!(step, reasons, "a checkpoint cannot be read; the training begins at its first step");
                Ok(None)
            }
            loaded => Ok(loaded?),
        }
    }

    /// The state that the ranks have of the group before, if it is a whole training.
    fn hand_over(
        &self,
        args: &Args,
        collective: &mut dyn Collective,
        legacy: &StateTransfer,
    ) -> Result<Option<Checkpoint>, Failure> {
        let shelf = self.checkpoints.as_ref().map(|kept| &kept.shelf);
        let goes_back = args.guard().on_bad_step == OnBadStep::RollBack;
        let every = args.checkpoint_every.filter(|_| goes_back);
        let mut remains = legacy.take();
        let handed = hand_over(collective, shelf, &mut remains, args.slicing(), every);
        if handed.is_err() {
            // It may be asked for again.
            legacy.leave(remains);
        }
        Ok(handed?)
    }

    /// Writes the trace of all ranks and their nodes, on rank 0, if there is to be one.
    fn trace(&self, args: &Args, mut events: Vec<serde_json::Value>) -> Result<(), Failure> {
        let Some(path) = args.trace.as_ref().filter(|_| args.rank == 0) else { return Ok(()) };
        if let Target::Servers(Servers { urls, credentials, .. }) = &self.target {
            let nodes = timelines(urls, credentials, &args.run);
            let began = self.began.duration_since(UNIX_EPOCH).unwrap_or_default();
            events.extend(node_events(&nodes, began.as_micros() as u64));
        }
        Ok(write_trace(path, &events)?)
    }

    fn config(&self, args: &Args, shares: Shares) -> TrainConfig {
        let mut input = args.input();
        input.class_names = class_names(&self.manifest, &args.label);
        if input.class_names.is_none() {
            input.classes = input.classes.or_else(|| classes_by_labels(&self.manifest, &args.label));
        }
        TrainConfig {
            seed: args.seed,
            epochs: args.epochs,
            virtual_ranks: shares.virtual_ranks,
            optimizer: args.optimizer(),
            guard: args.guard(),
            compare_every: args.desync_check_every,
            clip: args.clip_grad_norm,
            reduction: args.reduction(),
            reduce_dtype: args.reduce_dtype,
            all_reduce: args.all_reduce(),
            slicing: args.slicing(),
            traces: args.trace.is_some(),
            model: args.model_options(),
            freeze: args.freeze.clone(),
            lora: args.lora(),
            augmentation: if args.augment { Augmentation::CropFlip } else { Augmentation::None },
            rate: args.scaled_rate(shares.global_batch),
            decline: args.lr_decay(),
            warm_up_epochs: args.warmup_epochs,
            input,
            device: args.device,
            precision: args.precision,
            loss_scale: args.loss_scale.unwrap_or_default(),
            transport: args.transport(),
            preparation: args.preprocess_on.map(Into::into),
            threads: args.threads,
        }
    }
}

/// Leaves the run. What no node has taken of what this rank read is written down, with how to send it.
fn leave(args: &Args, loader: Loader) -> Result<(), Failure> {
    let reports = loader.close();
    if reports.is_empty() {
        return Ok(());
    }
    let unsent = UnsentReports { run: args.run.clone(), reports };
    let directory = args.report.as_deref().and_then(Path::parent).unwrap_or(Path::new("")).to_owned();
    let path = directory.join(format!("unsent-audits-{}-{}.json", args.run, args.rank));
    let bytes = serde_json::to_vec(&unsent)?;
    std::fs::write(&path, bytes).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    eprintln!(
        "shardtrain: no node has taken {} of what rank {} read, which are in {path}: send them with `shardctl audit send {path}` once a node answers",
        plural(unsent.reports.len() as u64, "report"),
        args.rank,
        path = path.display()
    );
    Ok(())
}

/// The weights are there, but not the figures on the test data.
#[derive(Debug, thiserror::Error)]
#[error("trained, but not evaluated: {}", crate::chain(&*.0))]
pub(crate) struct Unevaluated(pub(crate) Arc<TrainError>);

/// The data of the training, for a record.
fn data(dataset: Option<String>, plan: &Plan, manifest: &Manifest) -> Data {
    let document = plan.document();
    Data {
        dataset,
        version: document.version,
        plan: plan.id(),
        q: document.schedule.to_string(),
        seed: document.seed,
        samples: manifest.sample_count(),
    }
}

/// The dataset to train on: as the user named it, else for records and logs the one of the plan. They need no name.
fn dataset_of(catalog: &dyn Catalog, args: &Args, plan: PlanId) -> Option<String> {
    if let Some(dataset) = &args.dataset {
        return Some(dataset.to_string());
    }
    let is_noted = args.record.is_some() || !args.log_to.is_empty();
    let plans = is_noted.then(|| catalog.plans())?.ok()?;
    plans.into_iter().find(|info| info.id == plan).map(|info| info.dataset.to_string())
}

/// Where the record of this training goes, if it is to have one.
fn recording(
    args: &Args,
    checkpoints: Option<&Checkpoints>,
    data: Data,
) -> Result<Option<Recording>, Failure> {
    let Some(named) = &args.record else { return Ok(None) };
    let shelf = match (checkpoints, named) {
        (Some(checkpoints), named) if named.is_none() || *named == args.checkpoints => {
            checkpoints.shelf.clone()
        }
        (_, Some(named)) => CheckpointStore::open(&args.connect.store_at(named)?, &args.run)?,
        (_, None) => return Err(UsageError("say where the record goes: --record DIR".to_owned()).into()),
    };
    let about = About { data, arguments: args.told.clone() };
    Ok(Some(Recording { shelf, every: args.record_every, purpose: Purpose::Write(about) }))
}

/// The weights of a file to begin with.
fn first_weights(path: &Path) -> Result<Weights, Failure> {
    let unreadable = |error: &dyn Error| format!("cannot begin with {}: {error}", path.display());
    let bytes = std::fs::read(path).map_err(|error| unreadable(&error))?;
    Ok(Weights::import(&bytes).map_err(|error| unreadable(&error))?)
}

fn open_checkpoints(store: &Path, args: &Args) -> Result<Checkpoints, Failure> {
    let shelf = CheckpointStore::open(&args.connect.store_at(store)?, &args.run)?;
    let (every_steps, every) = args.checkpoint_intervals();
    Ok(Checkpoints { shelf, every_steps, every, keep: args.keep_checkpoints as usize })
}

/// The source of data: the nodes that were named first, then those that are `known` besides.
fn source(target: &Target, run: &RunId, known: &[String]) -> LoaderSource {
    match target {
        Target::Store(place) => LoaderSource::Store(place.clone()),
        Target::Servers(Servers { urls, credentials, .. }) => {
            let besides = known.iter().filter(|server| !urls.contains(server));
            LoaderSource::Nodes {
                servers: urls.iter().chain(besides).cloned().collect(),
                run: run.clone(),
                credentials: credentials.clone(),
            }
        }
    }
}

fn plan_to_train(catalog: &dyn Catalog, args: &Args) -> Result<PlanId, Failure> {
    if let Some(name) = &args.dataset {
        return plan_of(catalog, name, args.seed);
    }
    match args.plan.as_deref().map(str::parse) {
        Some(Ok(id)) => Ok(id),
        _ => Ok(find_plan(catalog, args.plan.as_deref())?),
    }
}

/// The only plan of the version that is named. Where there is none, the default one: all ranks find the same.
fn plan_of(catalog: &dyn Catalog, name: &DatasetRef, seed: u64) -> Result<PlanId, Failure> {
    let version = find_version(catalog, name)?.version;
    let plans = catalog.plans()?.into_iter().filter(|plan| plan.version == version);
    let plans: Vec<PlanId> = plans.map(|plan| plan.id).collect();
    match plans[..] {
        [id] => Ok(id),
        [] => Ok(catalog.put_plan(&default_plan(version, &catalog.manifest(version)?, seed)?)?),
        _ => {
            let ids = plans.iter().map(|id| id.short()).collect::<Vec<_>>().join(", ");
            Err(UsageError(format!("{name} has {} plans ({ids}); choose one with --plan", plans.len()))
                .into())
        }
    }
}

fn default_plan(version: VersionId, manifest: &Manifest, seed: u64) -> Result<PlanDocument, Failure> {
    let shape = Shape { shard_rows: shard_rows(manifest), row_bytes: manifest.row_bytes() };
    Ok(PlanDocument::with_defaults(version, &shape, PlanOptions { seed, ..PlanOptions::default() })?)
}

fn shard_rows(manifest: &Manifest) -> Vec<u32> {
    manifest.shards.iter().map(|shard| shard.rows).collect()
}

/// The transforms of the training data. Those that mix labels mix the ones that the model learns.
fn transforms(args: &Args) -> Result<Option<Transforms>, UsageError> {
    let Some(mut transforms) = args.transforms.clone() else { return Ok(None) };
    if transforms.on_error() == OnError::Skip {
        let message =
            "every sample of a step is trained on: use \"on_error\": \"zero\" or \"raise\" in --transforms";
        return Err(UsageError(message.into()));
    }
    if let Some(mixing) = transforms.pictures_mut().and_then(|chain| chain.batch.as_mut()) {
        mixing.labels.get_or_insert_with(|| args.label.clone());
    }
    Ok(Some(for_models(transforms)?))
}

/// As models take pictures, whatever the chain says for other loaders.
fn for_models(mut transforms: Transforms) -> Result<Transforms, UsageError> {
    if transforms.columns().is_some() {
        let message = "the models of shardtrain learn pictures, sounds and text: leave \"columns\" out of the transforms, or train \
                       a model of tables in a loop of your own";
        return Err(UsageError(message.into()));
    }
    if let Some(chain) = transforms.pictures_mut() {
        chain.layout = Layout::ChannelsFirst;
    }
    Ok(transforms)
}

fn open_test(
    catalog: Box<dyn Catalog>,
    args: &Args,
    training: &Manifest,
) -> Result<Option<CatalogRows>, Failure> {
    let Some(name) = &args.test_dataset else { return Ok(None) };
    let catalog = match &args.test_store {
        Some(store) => catalog_of(&Target::Store(args.connect.store_at(store)?))?,
        None => catalog,
    };
    let version = find_version(&*catalog, name)?.version;
    let mut rows = CatalogRows::open(catalog, version)?;
    match (&args.transforms, &args.test_transforms) {
        (_, Some(transforms)) => rows = rows.transformed(&for_models(transforms.clone())?)?,
        (Some(_), None) => {
            let message = "--transforms change the images of the training data alone: give --test-transforms for those of --test-dataset";
            return Err(UsageError(message.into()).into());
        }
        (None, None) => {}
    }
    let known = class_names(training, &args.label);
    if let (Some(known), Some(tested)) = (known, class_names(rows.manifest(), &args.label))
        && let Some(class) = tested.iter().find(|class| !known.contains(class))
    {
        return Err(UsageError(format!(
            "the test data {name} has the label {class:?}, which is not one of the {} classes of the training data",
            known.len()
        ))
        .into());
    }
    Ok(Some(rows))
}

fn join(args: &Args, target: &Target) -> Result<Box<dyn Collective>, Failure> {
    let (join_timeout, timeout) = args.timeouts();
    join_as(
        args,
        target,
        TcpOptions { run: args.run.to_string(), join_timeout, timeout, ..TcpOptions::default() },
    )
}

fn join_as(args: &Args, target: &Target, options: TcpOptions) -> Result<Box<dyn Collective>, Failure> {
    if args.world == 1 {
        let alone = threads::world(1, options.timeout).remove(0);
        return Ok(Box::new(alone));
    }
    let (rank, world) = (args.rank, args.world);
    let options = TcpOptions { tls: args.tls.open_beside(target)?, ..options };
    let joined = match (args.given_master(), target) {
        (None, Target::Servers(Servers { urls, credentials, .. })) => {
            connect_through_nodes(urls, credentials, &args.run, rank, world, &options)?
        }
        _ => connect(&args.master()?, rank, world, &options)?,
    };
    let is_one_machine = joined.hosts().iter().all(|host| *host == 0);
    if rank == 0 && options.tls.is_some() && args.transport == TransportName::Nccl && !is_one_machine {
        warn!(
            "--tls-cert protects the connections of ranks over TCP; those of NCCL between machines are not encrypted"
        );
    }
    Ok(Box::new(joined))
}

/// The labels that the manifest counts, in order: the classes of a label column of text.
fn class_names(manifest: &Manifest, label: &str) -> Option<Vec<String>> {
    let is_text = |field: &Field| {
        matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
    };
    if manifest.label_column() != Some(label) || !manifest.schema.field_with_name(label).is_ok_and(is_text) {
        return None;
    }
    Some(manifest.labels()?.keys().map(ToString::to_string).collect())
}

/// One more than the largest label that the manifest counts.
fn classes_by_labels(manifest: &Manifest, label: &str) -> Option<usize> {
    if manifest.label_column() != Some(label) {
        return None;
    }
    let counted = manifest.shards.iter().map(|shard| shard.labels.as_ref());
    let counted = counted.collect::<Option<Vec<_>>>()?.into_iter().flat_map(|labels| labels.keys());
    let labels: BTreeSet<&str> = counted.map(|label| &**label).collect();
    // The two classes of libsvm.
    if labels.iter().eq(&["-1", "1"]) {
        return Some(2);
    }
    let largest = labels.iter().map(|label| label.parse::<usize>().ok()).collect::<Option<Vec<_>>>()?;
    Some(largest.into_iter().max()? + 1)
}
