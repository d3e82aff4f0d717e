//! A program with a model of its own, started by `shardtrain run --program`: this one, as `as_a_rank`.

use std::io::{BufRead, BufReader, Lines, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use burn::tensor::{Device, Tensor, TensorData};
use rustix::process::{Pid, Signal, kill_process};
use shardd_store::catalog::StorePlace;
use shardd_trainer::checkpoint::{CheckpointStore, Checkpoints, Place, Resume};
use shardd_trainer::collective::Collective;
use shardd_trainer::error::TrainError;
use shardd_trainer::launch_env::OTHERS_ARE_GONE;
use shardd_trainer::models::{Norm, conv_net};
use shardd_trainer::testkit::digits_like;
use shardd_trainer::{CrossEntropy, LaunchEnv, Optimizer, Trainer, spawn};

/// The variable with the directory for checkpoints and for the digest at the end.
const DIRECTORY: &str = "OWN_MODEL_DIRECTORY";
const STEPS: u64 = 60;

/// Trains to the end, or until it is asked to stop.
fn train(
    collective: Box<dyn Collective>,
    directory: &Path,
    stop: shardd_trainer::checkpoint::StopFlag,
    mut tell: impl FnMut(u64),
) -> Result<Option<String>, TrainError> {
    let shelf = CheckpointStore::open(&StorePlace::Directory(directory.to_owned()), &"own".parse().unwrap())?;
    let kept = Checkpoints { shelf, every_steps: Some(7), every: None, keep: 2 };
    let model = conv_net([1, 8, 8], 10, Norm::Batch, 0.2, &Device::flex());
    let mut trainer = Trainer::new(model, CrossEntropy, collective)
        .virtual_ranks(4)
        .optimizer(Optimizer::adamw(0.01))
        .checkpoints(kept, Resume::Auto)
        .stop(stop)
        .build()?;
    // The place of a step is its number here.
    for step in trainer.place().position..STEPS {
        assert_eq!(trainer.steps(), step);
        trainer.step(0.01, |virtual_rank| {
            let (pixels, labels) = digits_like(8, step << 8 | u64::from(virtual_rank));
            [(Tensor::from_data(TensorData::new(pixels, [8, 1, 8, 8]), &Device::flex()), labels)]
        })?;
        tell(step);
        if let ControlFlow::Break(()) = trainer.keep(Place { epoch: 0, position: step + 1 })? {
            return Ok(None);
        }
    }
    trainer.finish()?;
    Ok(Some(trainer.weights()?.digest().to_string()))
}

#[test]
#[ignore = "a rank of the stories below"]
fn as_a_rank() {
    let directory = std::env::var_os(DIRECTORY).expect("a story says where");
    let directory = Path::new(&directory);
    let launched = LaunchEnv::of_env().unwrap();
    let tell = |step| {
        if launched.rank() == 0 {
            println!("step {step} of {} ranks", launched.world());
        }
    };
    let trained = launched.join("own").map_err(|_| OTHERS_ARE_GONE).and_then(|collective| {
        let stop = launched.stop_flag().expect("the system passes signals on");
        train(collective, directory, stop, tell).map_err(|error| match error {
            TrainError::Collective(_) => OTHERS_ARE_GONE,
            error => panic!("{error}"),
        })
    });
    match trained {
        Ok(Some(digest)) if launched.rank() == 0 => std::fs::write(directory.join("digest"), digest).unwrap(),
        Ok(_) => {}
        Err(code) => std::process::exit(code.into()),
    }
}

/// Killed when dropped, and its ranks with it.
struct Launcher(Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

type Pipe = Lines<BufReader<Box<dyn Read>>>;

fn launch(directory: &Path, nproc: u32) -> (Launcher, Pipe, Pipe) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    command.args(["run", "--nproc", &nproc.to_string(), "--program"]).arg(std::env::current_exe().unwrap());
    command.args(["--", "--exact", "own_model::as_a_rank", "--ignored", "--nocapture"]);
    command.env(DIRECTORY, directory).env("RAYON_NUM_THREADS", "1");
    let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pipe = |pipe: Box<dyn Read>| BufReader::new(pipe).lines();
    let told = pipe(Box::new(launcher.stdout.take().unwrap()));
    let said = pipe(Box::new(launcher.stderr.take().unwrap()));
    (Launcher(launcher), told, said)
}

/// The processes of the next world.
fn ranks(said: &mut Pipe) -> Vec<Pid> {
    let line = said.map(Result::unwrap).find(|line| line.contains("processes ")).expect("it starts ranks");
    let (_, pids) = line.split_once("processes ").unwrap();
    pids.split(' ').map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

fn reaches(told: &mut Pipe, step: &str) {
    assert!(told.map(Result::unwrap).any(|line| line.contains(step)), "it reaches {step}");
}

fn undisturbed() -> String {
    let directory = tempfile::tempdir().unwrap();
    let digests =
        spawn(1, |collective| train(Box::new(collective), directory.path(), Default::default(), |_| ()));
    digests.into_iter().next().unwrap().unwrap().expect("it got no stop signal")
}

#[test]
fn a_program_of_ones_own_goes_on_when_a_rank_is_killed_and_gives_the_same_weights() {
    let directory = tempfile::tempdir().unwrap();
    let (mut launcher, mut told, mut said) = launch(directory.path(), 3);
    let pids = ranks(&mut said);
    assert_eq!(pids.len(), 3);
    reaches(&mut told, "step 23 of 3 ranks");
    kill_process(pids[2], Signal::KILL).unwrap();
    assert_eq!(ranks(&mut said).len(), 2);
    reaches(&mut told, "step 59 of 2 ranks");
    said.for_each(drop);
    assert!(launcher.0.wait().unwrap().success());
    let digest = std::fs::read_to_string(directory.path().join("digest")).unwrap();
    assert_eq!(digest, undisturbed());
}

#[test]
fn a_program_of_ones_own_stops_with_a_checkpoint_and_goes_on_with_other_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let (mut launcher, mut told, said) = launch(directory.path(), 2);
    reaches(&mut told, "step 10 of 2 ranks");
    kill_process(Pid::from_child(&launcher.0), Signal::TERM).unwrap();
    said.for_each(drop);
    assert!(launcher.0.wait().unwrap().success(), "a stop that was asked for is no failure");
    assert!(!directory.path().join("digest").exists(), "it has not ended");
    let (mut launcher, mut told, said) = launch(directory.path(), 4);
    let first = told.by_ref().map(Result::unwrap).find(|line| line.contains("of 4 ranks")).unwrap();
    let first: u64 = first.split_once("step ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!(first > 10, "it continues");
    reaches(&mut told, "step 59 of 4 ranks");
    said.for_each(drop);
    assert!(launcher.0.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(directory.path().join("digest")).unwrap(), undisturbed());
}

#[test]
fn what_is_no_program_is_refused() {
    let refused = Command::new(env!("CARGO_BIN_EXE_shardtrain"))
        .args(["run", "--nproc", "2", "--program", "/nowhere/at/all"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/nowhere/at/all is no program"));
}
