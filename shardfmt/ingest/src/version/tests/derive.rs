use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use proptest::prelude::*;
use shardd_views::dedup::MinHash;
use shardd_views::expr::Expr;
use shardd_views::key::Key;
use shardd_views::rule::{Dedup, Rule};
use shardd_views::sample::Sample;
use shardd_views::split::Parts;
use shardfmt::shard::Shard;

use super::*;

/// Rows with a number of their own, a class, a weight and a text.
fn rows(classes: &[i64]) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..classes.len() as i64));
    let classes_of: ArrayRef = Arc::new(Int64Array::from(classes.to_vec()));
    let weights: ArrayRef =
        Arc::new(Float64Array::from_iter_values(classes.iter().map(|class| *class as f64)));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..classes.len()).map(|row| format!("text {}", row % 7))));
    RecordBatch::try_from_iter([("n", numbers), ("label", classes_of), ("weight", weights), ("text", texts)])
        .expect("columns of one length")
}

fn derived(base: Base<'_>, rules: &[Rule], memory: &Memory, threads: usize) -> Manifest {
    let size = Some(ByteSize(2_000));
    derive(base, rules, size, memory, threads, memory, &NoProgress).expect("samples").manifest
}

/// The numbers of the rows that rules leave, which may be none.
fn numbers_left(base: Base<'_>, rules: &[Rule], memory: &Memory) -> Vec<i64> {
    match derive(base, rules, Some(ByteSize(2_000)), memory, 2, memory, &NoProgress) {
        Ok(derived) => numbers(&derived.manifest, memory),
        Err(DeriveError::Version(VersionError::NothingLeft)) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// The numbers of the rows of a version, in order.
fn numbers(manifest: &Manifest, memory: &Memory) -> Vec<i64> {
    let batches = manifest.shards.iter().flat_map(|entry| {
        let bytes = memory.get(entry.id, File::Shard).expect("it was put");
        Shard::from_bytes(bytes).expect("a shard").record_batches().to_vec()
    });
    let all = concat_batches(&manifest.schema, &batches.collect::<Vec<_>>()).expect("one schema");
    all.column_by_name("n").expect("numbers").as_primitive::<Int64Type>().values().to_vec()
}

fn filter(text: &str) -> Rule {
    Rule::Filter { expression: Expr::parse(text).expect("an expression") }
}

fn part(part: &str, by: Key) -> Rule {
    let parts = Parts::parse("train=0.8,test=0.2").expect("parts");
    Rule::SplitPart { parts, part: part.to_owned(), by, stratify: None, seed: 3 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_filter_keeps_the_rows_that_fit_in_their_order_for_any_shards_and_threads(
        classes in prop::collection::vec(0i64..9, 2..200), lengths in prop::collection::vec(1usize..50, 1..4), least in 0i64..8,
    ) {
        let memory = Memory::default();
        let manifest = version(&rows(&classes), &lengths, &memory);
        let expected: Vec<i64> = (0..).zip(&classes).filter(|(_, class)| **class >= least).map(|(row, _)| row).collect();
        prop_assume!(!expected.is_empty());
        let rule = [filter(&format!("label >= {least}"))];
        let left = derived(base(&manifest), &rule, &memory, 1);
        prop_assert_eq!(numbers(&left, &memory), expected);
        prop_assert_eq!(derived(base(&manifest), &rule, &memory, 3).id(), left.id());
    }

    #[test]
    fn the_parts_of_a_split_have_every_row_once_and_stay_when_rows_are_appended(
        classes in prop::collection::vec(0i64..9, 60..200), more in 1usize..60,
    ) {
        let memory = Memory::default();
        let all = rows(&classes);
        let whole = version(&all, &[37], &memory);
        let before = version(&all.slice(0, classes.len() - more.min(50)), &[23], &memory);
        let mut found = Vec::new();
        for name in ["train", "test"] {
            let of = |version| numbers_left(base(version), &[part(name, Key::Row)], &memory);
            let (of_whole, of_before) = (of(&whole), of(&before));
            prop_assert_eq!(&of_whole[..of_before.len()], of_before.as_slice());
            found.extend(of_whole);
        }
        found.sort_unstable();
        prop_assert_eq!(found, (0..classes.len() as i64).collect::<Vec<_>>());
    }

    #[test]
    fn a_balanced_sample_has_each_class_equally_often(classes in prop::collection::vec(0i64..4, 8..120), each in 1u64..40) {
        let memory = Memory::default();
        let manifest = version(&rows(&classes), &[17], &memory);
        let kinds: std::collections::BTreeSet<i64> = classes.iter().copied().collect();
        let sample = Sample::Balanced { by: "label".into(), total: each * kinds.len() as u64 };
        let left = derived(base(&manifest), &[Rule::Sample { sample, seed: 1 }], &memory, 2);
        let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
        for number in numbers(&left, &memory) {
            *counts.entry(classes[number as usize]).or_default() += 1;
        }
        prop_assert!(counts.values().all(|count| *count == each), "{:?}", counts);
    }
}

#[test]
fn rows_with_equal_keys_stay_in_one_part() {
    let memory = Memory::default();
    let classes: Vec<i64> = (0..300).map(|row| row % 25).collect();
    let manifest = version(&rows(&classes), &[64], &memory);
    let by = Key::Columns(vec!["label".into()]);
    let train = derived(base(&manifest), &[part("train", by)], &memory, 2);
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    for number in numbers(&train, &memory) {
        *counts.entry(number % 25).or_default() += 1;
    }
    assert!(counts.values().all(|count| *count == 12), "{counts:?}");
    assert!(counts.len() < 25);
}

#[test]
fn rules_follow_one_another_and_the_version_names_them() {
    let memory = Memory::default();
    let classes: Vec<i64> = (0..200).map(|row| row % 10).collect();
    let manifest = version(&rows(&classes), &[64], &memory);
    let rules = [
        filter("label < 5"),
        Rule::Dedup { method: Dedup::Exact { by: Key::Columns(vec!["text".into(), "label".into()]) } },
        Rule::Sample { sample: Sample::Fraction { fraction: "0.5".parse().expect("a number") }, seed: 4 },
        Rule::Select { columns: vec!["n".into()] },
    ];
    let made = derive(base(&manifest), &rules, None, &memory, 2, &memory, &NoProgress).expect("samples");
    assert_eq!(made.left, [100, 35, 18, 18]);
    assert_eq!(made.manifest.schema.fields().len(), 1);
    assert_eq!(numbers(&made.manifest, &memory).len(), 18);
    assert_eq!(made.manifest.config["operation"], "derive");
    assert_eq!(made.manifest.config["rules"][0]["filter"]["expression"], "label < 5");
    assert_eq!(made_of(&made.manifest), Some(manifest.id()));
    let other =
        [&rules[..2], &[Rule::Sample { sample: Sample::Count { count: 18 }, seed: 5 }], &rules[3..]].concat();
    assert_ne!(derived(base(&manifest), &other, &memory, 2).id(), made.manifest.id());
}

#[test]
fn nearly_equal_texts_leave_their_first() {
    let memory = Memory::default();
    let words: Vec<String> = (0..60).map(|word| format!("word{word}")).collect();
    let texts: Vec<String> = (0..20)
        .map(|row| {
            // Each even row and the next one differ in their last word.
            let mut own: Vec<String> = words.iter().map(|word| format!("{word}of{}", row / 2)).collect();
            own[59] = format!("end{row}");
            own.join(" ")
        })
        .collect();
    let numbers_of: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20));
    let batch = RecordBatch::try_from_iter([
        ("n", numbers_of),
        ("text", Arc::new(StringArray::from(texts)) as ArrayRef),
    ])
    .expect("columns");
    let manifest = version(&batch, &[6], &memory);
    let rule =
        Rule::Dedup { method: Dedup::Minhash { column: "text".into(), parameters: MinHash::default() } };
    let left = derived(base(&manifest), &[rule], &memory, 2);
    assert_eq!(numbers(&left, &memory), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
}

#[test]
fn mistakes_name_the_way_out_and_write_nothing() {
    let memory = Memory::default();
    let manifest = version(&rows(&[1, 2, 3]), &[2], &memory);
    let puts = memory.puts();
    let refused = |rules: &[Rule], words: &str| {
        let error =
            derive(base(&manifest), rules, None, &memory, 1, &memory, &NoProgress).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains(words), "{words:?} not in {text}");
    };
    refused(&[filter("lable = 1")], "label");
    refused(&[filter("label > 99")], "no sample would be left");
    refused(&[Rule::Select { columns: vec!["numbers".into()] }], "numbers");
    let half = Sample::Fraction { fraction: "0.5".parse().expect("a number") };
    refused(&[Rule::Sample { sample: half, seed: 0 }, filter("label = 1")], "comes after all rules");
    refused(&[Rule::Select { columns: vec!["n".into()] }, filter("label = 1")], "label");
    refused(&[Rule::Sample { sample: Sample::Count { count: 9 }, seed: 0 }], "9");
    assert_eq!(memory.puts(), puts);
}

#[test]
fn a_damaged_shard_stops_it_by_name() {
    let memory = Memory::default();
    let manifest = version(&rows(&[1, 2, 3, 4]), &[2], &memory);
    memory.remove(manifest.shards[1].id, File::Shard);
    let error = derive(base(&manifest), &[filter("label > 0")], None, &memory, 1, &memory, &NoProgress);
    let error = error.expect_err("a shard is missing").to_string();
    assert!(error.contains(&manifest.shards[1].id.to_string()), "{error}");
}
