//! `shardtrain plan` as its user sees it.

use std::process::{Command, Output};

use serde_json::Value;

fn plan(arguments: &str) -> Output {
    let arguments = arguments.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_shardtrain")).arg("plan").args(arguments).output().unwrap()
}

fn json(arguments: &str) -> Value {
    let output = plan(&format!("{arguments} --json"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const LARGE: &str = "--params 7.5e9 --ranks 64 --memory 80GiB --link 25GB/s --batch 64";

#[test]
fn the_lowest_stage_that_fits_is_proposed_with_the_flags_for_it() {
    let found = json(LARGE);
    assert_eq!(found["parameters"], 7_500_000_000u64);
    let fits: Vec<bool> =
        found["stages"].as_array().unwrap().iter().map(|stage| stage["fits"].as_bool().unwrap()).collect();
    assert_eq!(fits, [false, true, true, true], "{found:#}");
    // Adam's moments, of all parameters and of a 64th.
    let moments = |stage: usize| found["stages"][stage]["bytes"]["moments"].as_f64().unwrap();
    assert_eq!(moments(0), 8.0 * 7.5e9);
    assert!((moments(1) / (8.0 * 7.5e9 / 64.0) - 1.0).abs() < 0.02, "{}", moments(1));
    let proposal = &found["proposal"];
    assert_eq!(proposal["stage"], 1);
    let [micro, accumulation] = ["micro_batch", "accumulation"].map(|name| proposal[name].as_u64().unwrap());
    assert_eq!(micro * accumulation * 64, found["batch"].as_u64().unwrap());
    let flags = proposal["flags"].as_str().unwrap();
    let expected = format!("--virtual-ranks {} --batch-size {micro} --zero 1", 64 * accumulation);
    assert!(flags.starts_with(&expected), "{flags}");

    let output = plan(&format!("{LARGE} --flops 100T"));
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    let command = format!("shardtrain run --nproc 64 -- --dataset DATASET {flags}\n");
    for part in ["7,500,000,000 parameters", "(a guess)", "an estimate", "8 at stage 3", &command] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn a_model_of_known_shape_is_counted_and_timed() {
    let model = "--model gpt --layers 2 --heads 2 --hidden-size 32 --vocabulary 17 --length 8";
    let found = json(&format!("{model} --ranks 2 --memory 1GiB --link 10Gbit/s --batch 12 --measure"));
    let layer = 12 * 32 * 32 + 13 * 32;
    assert_eq!(found["parameters"], 2 * layer + 25 * 32 + 64);
    assert_eq!((&found["largest_block"], &found["link_bytes_per_s"]), (&layer.into(), &1.25e9.into()));
    // Six samples of each rank: a power of two twice at most.
    let of_proposal = ["stage", "micro_batch", "accumulation"].map(|name| found["proposal"][name].as_u64());
    assert_eq!(of_proposal, [Some(0), Some(2), Some(3)]);
    let flags = found["proposal"]["flags"].as_str().unwrap();
    assert!(
        flags.ends_with("--optimizer adamw --model gpt --layers 2 --heads 2 --hidden-size 32"),
        "{flags}"
    );
    for stage in found["stages"].as_array().unwrap() {
        assert!(stage["compute_s"].as_f64().unwrap() > 0.0, "{stage}");
        assert!(stage["step_s"].as_f64() >= stage["compute_s"].as_f64(), "{stage}");
    }
}

#[test]
fn sixteen_bits_and_groups_are_counted_and_asked_for() {
    let more = "--zero-group 8 --precision bf16 --flops 100T";
    let (all, groups) = (json(&format!("{LARGE} --flops 100T")), json(&format!("{LARGE} {more}")));
    let bytes =
        |plan: &Value, stage: usize, kind: &str| plan["stages"][stage]["bytes"][kind].as_f64().unwrap();
    let close = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 0.02, "{found} of {expected}");
    };
    // Parameters in sixteen bits, and an eighth of them in full; no rank of another group is asked for any.
    close(bytes(&groups, 1, "weights"), (2.0 + 4.0 / 8.0) * 7.5e9);
    close(bytes(&groups, 3, "weights"), 4.0 / 8.0 * 7.5e9);
    close(bytes(&groups, 1, "moments"), 8.0 * bytes(&all, 1, "moments"));
    let sent = |plan: &Value| plan["stages"][1]["sent"]["parameters"].as_f64().unwrap();
    close(sent(&all), 63.0 / 64.0 * 4.0 * 7.5e9);
    close(sent(&groups), 7.0 / 8.0 * 2.0 * 7.5e9);
    let flags = groups["proposal"]["flags"].as_str().unwrap();
    assert!(flags.contains("--zero-group 8") && flags.contains("--precision bf16"), "{flags}");
}

#[test]
fn where_nothing_fits_it_says_by_how_much_and_what_to_do() {
    let output = plan("--params 175B --ranks 2 --memory 16GiB --link 10Gbit/s");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["nothing fits", "stage 3", "too much", "more ranks", "smaller blocks"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(String::from_utf8_lossy(&output.stdout).contains("gradients"), "the table is there all the same");
}

#[test]
fn mistakes_are_told() {
    let rest = "--ranks 64 --memory 80GiB --link 25GB/s";
    for (arguments, part) in [
        (rest.to_owned(), "--params"),
        (format!("{rest} --params many"), "no count"),
        (format!("{rest} --params 0"), "no count"),
        (format!("{rest} --params 1e9 --model gpt"), "cannot be used with"),
        (format!("{rest} --params 1e9 --largest-block 2e9"), "more than --params"),
        (format!("{rest} --params 1e15 --largest-block 1"), "65536 blocks"),
        (format!("{rest} --params 1e9 --batch 100"), "give 64 or 128"),
        (format!("{rest} --params 1e9 --batch 10"), "give 64"),
        (format!("{rest} --params 1e9 --zero-group 6"), "--zero-group 6; give a divisor of 64"),
        (format!("{rest} --params 1e9 --flops 1T --measure --model gpt"), "cannot be used with"),
        (format!("{rest} --params 1e9 --measure"), "--model"),
        (format!("{rest} --params 1e9 --layers 4"), "--model"),
        (format!("{rest} --model gpt --largest-block 1M"), "--params"),
        (format!("{rest} --model gpt --heads 3"), "multiple of the heads"),
        ("--params 1e9 --ranks 0 --memory 1GiB --link 1GB/s".to_owned(), "0"),
        ("--params 1e9 --ranks 2 --memory much --link 1GB/s".to_owned(), "much"),
        ("--params 1e9 --ranks 2 --memory 1GiB --link 1GB".to_owned(), "no rate"),
        ("--params 1e9 --ranks 2 --memory 1GiB --link 0GB/s".to_owned(), "no rate"),
    ] {
        let output = plan(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(part), "{arguments}: {said}");
        assert!(output.stdout.is_empty());
    }
}
