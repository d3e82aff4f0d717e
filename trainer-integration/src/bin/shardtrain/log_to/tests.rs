use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use shardd_trainer::train::StepTime;

use super::*;

fn progress(epoch: u32, step: u64, steps: u64) -> Progress {
    Progress {
        rank: 0,
        epoch,
        step,
        steps,
        loss: 2.5,
        accuracy: 0.25,
        is_skipped: true,
        loss_scale: None,
        groups_inside_machines: None,
        gradient_norm: 1.5,
        rate: 0.125,
        memory: shardd_trainer::ledger::Usage::default(),
        checkpoint_s: 0.0,
        checkpoint: None,
        samples_per_s: 640.0,
        left_s: 1.0,
        straggler: None,
        time: StepTime { wait_s: 0.5, decode_s: 0.25, compute_s: 4.0, update_s: 3.0, reduce_s: 2.0 },
    }
}

#[test]
fn a_place_is_a_system_and_a_name_in_it() {
    for (text, place) in [
        ("tensorboard:a:b", LogTo::TensorBoard("a:b".into())),
        ("mlflow:a b", LogTo::Client { system: "mlflow", name: "a b".to_owned() }),
        ("wandb:team/project", LogTo::Client { system: "wandb", name: "team/project".to_owned() }),
        ("trackio:x", LogTo::Client { system: "trackio", name: "x".to_owned() }),
    ] {
        assert_eq!((text.parse().as_ref(), place.to_string().as_str()), (Ok(&place), text));
    }
    for wrong in ["tensorboard", "tensorboard:", "mlflow:", "comet:x", ":x", ""] {
        let refusal = wrong.parse::<LogTo>().expect_err(wrong);
        assert_eq!(refusal, "use tensorboard:DIR, mlflow:EXPERIMENT, wandb:PROJECT or trackio:PROJECT");
    }
}

#[test]
fn a_step_has_the_values_of_its_progress() {
    let (step, values) = values_of(&progress(2, 3, 10), 4).expect("few steps all have values");
    assert_eq!(step, 23);
    let value = |name| values.iter().find(|(it, _)| *it == name).map(|(_, value)| *value);
    assert_eq!((value("train/loss"), value("train/skipped")), (Some(2.5), Some(1.0)));
    assert_eq!((value("seconds/waiting_for_ranks"), value("seconds/updating")), (Some(2.0), Some(1.0)));
}

/// Remembers the calls; fails at this one.
struct Remembered {
    calls: Arc<Mutex<Vec<String>>>,
    fails_at: usize,
}

impl Remembered {
    fn call(&mut self, call: String) -> io::Result<()> {
        let mut calls = self.calls.lock().expect("no test panics here");
        calls.push(call);
        if calls.len() == self.fails_at { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl RunLogger for Remembered {
    fn describe(&mut self, facts: &Facts) -> io::Result<()> {
        self.call(format!("{} facts", facts.len()))
    }

    fn scalars(&mut self, step: u64, _: &[(&str, f64)]) -> io::Result<()> {
        self.call(format!("step {step}"))
    }

    fn end(&mut self, how: Ending) -> io::Result<()> {
        self.call(format!("{how:?}"))
    }
}

#[test]
fn a_log_that_fails_is_left_out_and_others_continue() {
    let calls = [(), ()].map(|()| Arc::new(Mutex::new(Vec::new())));
    let mut curves = Curves::default();
    for (calls, fails_at) in calls.iter().zip([3, usize::MAX]) {
        let log = Remembered { calls: Arc::clone(calls), fails_at };
        curves.logs.push((LogTo::TensorBoard("x".into()), Box::new(log)));
    }
    curves.describe(&Facts::new());
    for step in 0..4 {
        curves.step(&progress(0, step, 4), 1);
    }
    curves.end(Ending::Stopped);
    let [failed, whole] = calls.map(|calls| calls.lock().expect("no test panics here").join(", "));
    assert_eq!(failed, "0 facts, step 0, step 1");
    assert_eq!(whole, "0 facts, step 0, step 1, step 2, step 3, Stopped");
}

proptest! {
    #[test]
    fn of_many_steps_at_most_10_000_and_the_last_have_values(epochs in 1u32..50, steps in 1u64..5_000) {
        let all = (0..epochs).flat_map(|epoch| (0..steps).map(move |step| progress(epoch, step, steps)));
        let logged: Vec<u64> = all.filter_map(|it| values_of(&it, epochs)).map(|(step, _)| step).collect();
        let all = u64::from(epochs) * steps;
        prop_assert!(logged.len() as u64 <= MOST_STEPS + 1);
        prop_assert_eq!((logged.first(), logged.last()), (Some(&0), Some(&(all - 1))));
        prop_assert!(all > MOST_STEPS || logged.len() as u64 == all);
        prop_assert!(logged.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn only_the_same_run_of_the_same_plan_has_the_same_id(
        a in "[a-z]{1,3}", b in "[a-z]{1,3}", plans in any::<[bool; 2]>(), series in "[ab]{0,1}"
    ) {
        let [first, second] = plans.map(|plan| PlanId::of(&[u8::from(plan)]));
        let runs = [&a, &b].map(|run| run.parse::<RunId>().expect("letters"));
        let id = id_of(&runs[0], first, &series);
        prop_assert_eq!(&id, &id_of(&runs[0], first, &series));
        prop_assert_eq!(id == id_of(&runs[1], first, &series), a == b);
        prop_assert_eq!(id == id_of(&runs[0], second, &series), first == second);
        prop_assert_ne!(&id, &id_of(&runs[0], first, "another start"));
    }
}
