//! Plans from the command line to the order of samples: stratified ones, advice, warnings; and the second
//! implementation in Python, which must say the same. Only the warning at attach needs a node.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use shardd_tests::{Cluster, binary, ended, error_line, python, run};
use tempfile::TempDir;

/// Samples in the table, and of each class.
const SAMPLES: u64 = 4000;
const OF_CLASS: u64 = 400;
const PARTITIONS: u64 = 8;

/// A store with a dataset of ten classes, sorted.
struct Store(TempDir);

impl Store {
    fn new() -> Store {
        let store = Store(TempDir::new().expect("a temporary directory can be made"));
        let rows: String =
            (0..SAMPLES).map(|n| format!("{},{}\n", n / OF_CLASS, "x".repeat((n % 50) as usize))).collect();
        fs::write(store.path("sorted.csv"), format!("label,text\n{rows}")).expect("it can be written");
        store.json("ingest sorted.csv --name sorted --mix sequential --shard-size 4KiB");
        store
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn shardctl(&self, words: &str) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--store", "s"]).args(words.split_whitespace());
        command.env("HOME", self.0.path()).current_dir(self.0.path());
        command
    }

    fn json(&self, words: &str) -> Value {
        let printed = run(self.shardctl(words).arg("--json"));
        serde_json::from_str(printed.lines().last().unwrap_or_default()).expect("it prints JSON")
    }

    fn refused(&self, words: &str) -> (String, i32) {
        let output = self.shardctl(words).output().expect("shardctl starts");
        (error_line(&output), output.status.code().expect("it was not killed"))
    }

    /// The samples of an epoch in their order, each with the partition that holds it.
    fn order(&self, plan: &str, epoch: u32) -> Vec<(u64, u64)> {
        let at = self.json(&format!("plan at --plan {plan} --epoch {epoch} --global-batch-size {SAMPLES}"));
        let number = |found: &Value, field: &str| found[field].as_u64().expect("a number");
        let found = at.as_array().expect("a list").iter();
        found.map(|found| (number(found, "sample"), number(found, "partition"))).collect()
    }

    /// How many samples of each class each partition holds in an epoch.
    fn held(&self, plan: &str, epoch: u32) -> BTreeMap<(u64, u64), u64> {
        let mut held = BTreeMap::new();
        for (sample, partition) in self.order(plan, epoch) {
            *held.entry((partition, sample / OF_CLASS)).or_default() += 1;
        }
        held
    }

    /// The mean distance of the classes of partitions from those of all.
    fn skew(&self, plan: &str, epoch: u32) -> f64 {
        let held = self.held(plan, epoch);
        let of = |partition| {
            let part = |class| held.get(&(partition, class)).map_or(0.0, |count| *count as f64);
            let all: f64 = (0..10).map(part).sum();
            0.5 * (0..10).map(|class| (part(class) / all - 0.1).abs()).sum::<f64>()
        };
        (0..PARTITIONS).map(of).sum::<f64>() / PARTITIONS as f64
    }
}

fn reference() -> String {
    format!("{}/reference/plan.py", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_golden_files_are_those_which_the_reference_writes() {
    let Some(python) = python() else { return };
    for (verb, file) in [("golden", "plan-golden.json"), ("mixtures", "mixture-golden.json")] {
        let written = run(Command::new(&python).args([&reference(), verb]));
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shardfmt/testdata").join(file);
        let golden = fs::read_to_string(golden).expect("it is there");
        assert!(written == golden, "plan.py {verb} writes another file");
    }
}

#[test]
fn a_stratified_plan_keeps_as_many_of_each_class_in_every_partition() {
    let store = Store::new();
    let made = store.json("partition --q 0.3 --partitions 8 --stratify label");
    let plan = made["plan"].as_str().expect("an id");
    assert_eq!((made["grain_rows"].as_u64(), made["batch_norm_risk"].as_bool()), (Some(1), Some(false)));
    let first = store.held(plan, 0);
    assert!(first.len() == 80 && first.values().all(|count| *count == 50), "{first:?}");
    assert_eq!(store.held(plan, 6), first);
    assert_ne!(store.order(plan, 6), store.order(plan, 0));
    let read = store.json(&format!("read --plan {plan} --batch-size 500 --epochs 2 --quiet"));
    assert!(read.is_object(), "the loader reads it: {read}");
    assert!(run(&mut store.shardctl("plan show")).contains("10 by label"));

    // The second implementation orders it as the first does.
    let strata = made["document"]["strata"].as_str().expect("a digest");
    let strata = store.path(&format!("s/store/plans/{strata}.strata"));
    assert!(strata.exists());
    if let Some(python) = python() {
        let info = store.json("info sorted --shards");
        let entries = info["entries"].as_array().expect("shards").iter();
        let rows: Vec<u64> = entries.map(|shard| shard["rows"].as_u64().expect("a number")).collect();
        let mut command = Command::new(python);
        command.args([&reference(), "order", &made["document"].to_string(), &format!("{rows:?}"), "6"]);
        let starts: Vec<u64> =
            rows.iter().scan(0, |sum, rows| Some(std::mem::replace(sum, *sum + rows))).collect();
        let sample = |line: &str| {
            let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
            starts[numbers[1] as usize] + numbers[2]
        };
        let order: Vec<u64> = run(command.arg(&strata)).lines().map(sample).collect();
        assert_eq!(order, store.order(plan, 6).into_iter().map(|(sample, _)| sample).collect::<Vec<_>>());
    }

    store.json(&format!("plan rm --plan {plan}"));
    store.json("gc --older-than 0s --delete");
    assert!(!strata.exists(), "strata go with the last plan that names them");
}

#[test]
fn sizes_are_strata_too_and_what_is_neither_is_refused() {
    let store = Store::new();
    let made = store.json("partition --q 0.1 --partitions 8 --stratify size:5");
    let plan = made["plan"].as_str().expect("an id");
    let lengths = |epoch| {
        let mut held: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for (sample, partition) in store.order(plan, epoch) {
            *held.entry((partition, sample % 50 / 10)).or_default() += 1;
        }
        held
    };
    assert!(lengths(0).values().all(|count| *count == 100), "{:?}", lengths(0));
    assert_eq!(lengths(4), lengths(0));
    let refused = |words: &str| store.refused(words);
    assert!(refused("partition --q 0.1 --stratify colour").0.contains("size:BUCKETS"));
    assert!(refused("partition --q 0.1 --stratify size:0").0.contains("size:8"));
    assert!(refused("partition --q 0.1 --stratify label --grain-rows 4").0.contains("--grain-rows 1"));
    assert!(refused("partition --q 1.1").0.contains("outside 0 to 1"));
    assert!(refused("partition --q 1,,0.1").0.contains("is not a decimal number"));
    assert!(refused("partition --q 0.1 --partitions 5000").0.contains("--partitions 4000"));
    fs::write(store.path("plain.csv"), "number\n1\n2\n3\n").expect("it can be written");
    store.json("ingest plain.csv --name plain");
    assert!(refused("partition plain --q 0.1 --stratify label").0.contains("stratify by size"));
}

#[test]
fn sorted_labels_are_a_risk_that_is_said_and_the_advice_mends_it() {
    let store = Store::new();
    let partition = "partition --q 0.1 --partitions 8 --grain-rows 1";
    let said = run(&mut store.shardctl(partition));
    let warning = said.lines().find(|line| line.starts_with("warning")).expect("there is a warning");
    assert!(warning.contains("of 10 classes") && warning.contains("batch normalisation"), "{warning}");
    let made = store.json(partition);
    assert_eq!(made["batch_norm_risk"], true);
    let spread = run(&mut store.shardctl(&format!("{partition} --placement random")));
    assert!(!spread.contains("warning"), "{spread}");

    let whole = "partition --q 1 --partitions 8 --grain-rows 1";
    let said = run(&mut store.shardctl(whole));
    assert!(said.contains("are exchanged in 16 parts, each permuted by itself"), "{said}");
    let in_json = store.json(whole)["shuffle"].as_str().expect("a sentence").to_owned();
    assert!(said.contains(&in_json), "{in_json}");
    let uniform = run(&mut store.shardctl(&format!("{whole} --chunks 1 --placement random")));
    assert!(uniform.contains("each epoch is a uniform permutation of all samples"), "{uniform}");

    let plan = made["plan"].as_str().expect("an id");
    let asked = "--epochs 10";
    let advised = store.json(&format!("plan advise --plan {plan} {asked} --nodes 4 --link 10Gbit/s"));
    let advice = &advised["advice"];
    let floor = advice["spread"]["floor"].as_f64().expect("a number");
    let begins = advice["spread"]["distance"].as_f64().expect("a number");
    assert!((store.skew(plan, 0) - begins).abs() < 0.02);
    for choice in ["constant", "two_parts"] {
        let q = advice[choice]["q"].as_str().expect("a schedule");
        let made = store.json(&format!("partition --q {q} --partitions 8 --grain-rows 1"));
        let plan = made["plan"].as_str().expect("an id");
        let skew = (0..10).map(|epoch| store.skew(plan, epoch)).sum::<f64>() / 10.0;
        assert!(skew < 0.25 + floor * 1.15, "{choice} {q}: {skew}, floor {floor}");
    }
    assert!(advice["two_parts"]["bytes"].as_u64() < advice["constant"]["bytes"].as_u64());
    assert!(advised["assumptions"].as_array().is_some_and(|all| all.len() == 3));
    let said = run(&mut store.shardctl(&format!("plan advise sorted --partitions 8 {asked}")));
    for way in
        ["one large exchange and then little", "virtual rank", "--stratify label", "--placement random"]
    {
        assert!(said.contains(way), "{way}: {said}");
    }
    // A slow link hides less than a fast one, and what is advised as the largest share that hides does hide.
    let hiding = |link: &str, step_ms: u32| {
        let command = format!(
            "plan advise --plan {plan} {asked} --nodes 4 --bandwidth {link} --step-ms {step_ms} \
             --global-batch-size 16"
        );
        let advice = store.json(&command)["advice"].take();
        let q: f64 = advice["largest_hidden_q"].as_str().expect("a share").parse().expect("a number");
        let measured: f64 =
            advice["largest_measured_q"].as_str().expect("a share").parse().expect("a number");
        assert!(measured == 1.0 || measured < q, "measurements leave a margin: {measured} of {q}");
        (q, advice["constant"]["hidden_share"].as_f64().expect("a number"))
    };
    assert_eq!(hiding("10Gbit", 1000), (1.0, 1.0));
    let (largest, hidden) = hiding("1kbit", 10);
    assert!(largest < 1.0 && hidden < 1.0, "{largest} {hidden}");
    let advice = format!("plan advise --plan {plan} {asked} --link 10Gbit/s --step-ms 1000");
    let said = run(&mut store.shardctl(&advice));
    assert!(said.contains("every exchange hides behind training"), "{said}");
    // Epochs of few steps were not found to hide up to a limit.
    assert!(said.contains("unknown by measurements, as epochs have fewer than 20 steps"), "{said}");
    let said = run(&mut store.shardctl(&format!("{advice} --global-batch-size 16")));
    assert!(said.contains("that hides: --q 1 by measurements, --q 1 by the closed form"), "{said}");
    assert!(
        store
            .refused(&format!("plan advise sorted {asked} --global-batch-size 0"))
            .0
            .contains("at least 1 sample")
    );
    let few = store.json(&format!("plan advise --plan {plan} {asked} --virtual-ranks 1"));
    assert_eq!(few["advice"]["constant"]["q"], "0", "one virtual rank reads all partitions");
    assert!(store.refused("plan advise sorted --epochs 0").0.contains("outside 1 to"));
    assert!(store.refused("plan advise sorted --epochs 9 --skew 2").0.contains("--skew 0.25"));
    let unequal = "plan advise sorted --partitions 8 --epochs 9 --virtual-ranks 3";
    assert!(
        store.refused(unequal).0.contains("3 virtual ranks cannot share 8 partitions equally: use 2 or 4")
    );
}

#[test]
fn a_training_on_sorted_labels_is_told_as_it_attaches_with_and_without_nodes() {
    let store = Store::new();
    let rows: String = (0..SAMPLES).map(|n| format!("{},{}\n", n / OF_CLASS, n % 7)).collect();
    let table = store.path("numbers.csv");
    fs::write(&table, format!("label,number\n{rows}")).expect("it can be written");
    let cluster = Cluster::start(1);
    let at_node = || cluster.shardctl();
    let in_store = || store.shardctl("");
    for (shardctl, place) in [
        (&in_store as &dyn Fn() -> Command, ["--store".to_owned(), store.path("s").display().to_string()]),
        (&at_node, ["--server".to_owned(), cluster.nodes[0].http.clone()]),
    ] {
        let ingest = ["ingest", "--name", "numbers", "--mix", "sequential", "--shard-size", "4KiB"];
        run(shardctl().args(ingest).arg(&table));
        let plan = |words: &str| {
            let partition = ["partition", "numbers", "--partitions", "8", "--grain-rows", "1", "--id"];
            run(shardctl().args(partition).args(words.split(' '))).trim().to_owned()
        };
        let trained = |plan: &str, words: &str| {
            let mut command = Command::new(binary("shardtrain"));
            command.args(&place).args(["--plan", plan, "--epochs", "1", "--classes", "10"]);
            let output = ended(command.args(words.split(' ')));
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stderr).expect("text")
        };
        let sorted = plan("--q 0.01");
        let told = trained(&sorted, "--virtual-ranks 8 --batch-size 20 --run one");
        assert_eq!(told.lines().count(), 1, "{told}");
        for part in ["20 samples begins with 2", "of 10 classes", "each of 8 virtual ranks", "--q 0.1"] {
            assert!(told.contains(part), "{part:?} is missing: {told}");
        }
        assert_eq!(trained(&sorted, "--virtual-ranks 1 --run two"), "");
        assert_eq!(trained(&plan("--q 0.01 --placement random"), "--virtual-ranks 8 --run three"), "");
        // Strata travel with their plan, also to a node and back.
        let stratified = plan("--q 0.01 --stratify label");
        assert_eq!(trained(&stratified, "--virtual-ranks 8 --run four"), "");
        let shown = run(shardctl().args(["plan", "show", "--plan", &stratified]));
        assert!(shown.contains("10 by label"), "{shown}");
    }
}
