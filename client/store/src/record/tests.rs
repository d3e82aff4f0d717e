use std::sync::Arc;

use proptest::prelude::*;
use shardfmt::{Digest, PlanId, VersionId};

use super::*;
use crate::origin::Origin;

/// Numbers with any bits, those that are none among them.
fn share(has_digests: bool) -> impl Strategy<Value = ShareRow> {
    (any::<u64>(), any::<u64>(), any::<u64>(), any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(
        move |(samples, loss, correct, input, gradient)| ShareRow {
            samples,
            loss: f64::from_bits(loss),
            correct,
            input: has_digests.then_some(Digest128(input)),
            gradient: has_digests.then_some(Digest128(gradient)),
        },
    )
}

fn row(virtual_ranks: usize) -> impl Strategy<Value = StepRow> {
    let numbers = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (numbers, any::<bool>(), any::<[u8; 32]>(), any::<bool>()).prop_flat_map(
        move |(numbers, is_skipped, weights, has_digests)| {
            let (epoch, rate, samples, loss, correct, norm) = numbers;
            prop::collection::vec(share(has_digests), virtual_ranks).prop_map(move |shares| StepRow {
                step: 0,
                epoch,
                rate: f32::from_bits(rate),
                samples,
                loss: f64::from_bits(loss),
                correct,
                gradient_norm: f64::from_bits(norm),
                is_skipped,
                weights: has_digests.then_some(Digest(weights)),
                shares,
            })
        },
    )
}

/// Steps from `first` on, of 1 to 5 virtual ranks.
fn rows(first: u64, count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<StepRow>> {
    let count = count.into();
    (1usize..6)
        .prop_flat_map(move |virtual_ranks| prop::collection::vec(row(virtual_ranks), count.clone()))
        .prop_map(move |mut rows| {
            (first..).zip(&mut rows).for_each(|(step, row)| row.step = step);
            rows
        })
}

fn width(rows: &[StepRow]) -> u32 {
    rows[0].shares.len() as u32
}

fn record(rows: &[StepRow], parts: Vec<Digest>) -> Record {
    let (first, end) = (rows[0].step, rows[0].step + rows.len() as u64);
    let data = Data {
        dataset: Some("digits".to_owned()),
        version: VersionId(Digest::of(b"version")),
        plan: PlanId(Digest::of(b"plan")),
        q: "0.1".to_owned(),
        seed: 7,
        samples: 1437,
    };
    Record {
        format: FORMAT,
        run: "digits-7".parse().unwrap(),
        data,
        virtual_ranks: width(rows),
        arguments: vec!["--epochs".to_owned(), "4".to_owned()],
        settings: [("learning rate".to_owned(), "0.1".to_owned())].into(),
        is_exact: true,
        steps: StepsTable { first, end, of: end, digests_every: 1, parts },
        first_weights: Digest::of(b"first"),
        weights: Some(Digest::of(b"last")),
        checkpoints: Vec::new(),
        checkpoint_writes: Vec::new(),
        launches: Vec::new(),
        ending: Ending::Trained,
    }
}

/// The same bytes are the same steps.
fn encoded(rows: &[StepRow]) -> Digest {
    Digest::of(&encode_part(rows))
}

fn in_memory() -> Records {
    Records::new(Arc::new(Origin::open("memory://").unwrap()))
}

/// Puts a record of these steps, cut into parts as they are.
async fn put(records: &Records, rows: &[StepRow], run: &str) -> Record {
    let mut parts = Vec::new();
    let run = run.parse().unwrap();
    for part in rows.chunk_by(|a, b| a.step / STEPS_PER_PART == b.step / STEPS_PER_PART) {
        parts.push(records.put_part(&run, encode_part(part)).await.unwrap());
    }
    let record = Record { run, ..record(rows, parts) };
    records.publish(&record).await.unwrap();
    record
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_part_gives_back_every_bit(rows in rows(5_000, 1..40)) {
        let bytes = encode_part(&rows);
        let back = decode_part(bytes.clone(), "it", 5_000..5_000 + rows.len() as u64, width(&rows)).unwrap();
        prop_assert_eq!(encode_part(&back), bytes.clone(), "the same rows are the same bytes");
        prop_assert_eq!(first_difference(&rows, &back), None);
        for (row, back) in rows.iter().zip(&back) {
            prop_assert_eq!(row.rate.to_bits(), back.rate.to_bits());
            prop_assert_eq!(row.weights, back.weights);
            for (share, back) in row.shares.iter().zip(&back.shares) {
                prop_assert_eq!(share.loss.to_bits(), back.loss.to_bits());
                prop_assert_eq!((share.input, share.gradient), (back.input, back.gradient));
            }
        }
        // Of other steps, or of other virtual ranks, it is not.
        prop_assert!(decode_part(bytes.clone(), "it", 5_001..5_001 + rows.len() as u64, width(&rows)).is_err());
        prop_assert!(decode_part(bytes, "it", 5_000..5_000 + rows.len() as u64, width(&rows) + 1).is_err());
    }

    #[test]
    fn bytes_that_are_wrong_are_an_error_and_never_a_panic(
        rows in rows(0, 1..10), at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>(),
    ) {
        let whole = encode_part(&rows);
        let steps = 0..rows.len() as u64;
        let mut bytes = whole.to_vec();
        bytes[at.index(whole.len())] ^= flip;
        // It may be in a number; then it is another table of the same steps, which its digest tells.
        let _ = decode_part(bytes.into(), "it", steps.clone(), width(&rows));
        let shorter = whole.slice(..cut.index(whole.len()));
        prop_assert!(decode_part(shorter, "it", steps, width(&rows)).is_err());
    }

    #[test]
    fn a_record_is_known_by_its_bytes(rows in rows(0, 1..4), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let record = record(&rows, vec![encoded(&rows)]);
        let (id, bytes) = (record.id(), record.to_bytes());
        prop_assert_eq!(Record::from_bytes(id, &bytes).unwrap(), record);
        let mut damaged = bytes.clone();
        damaged[at.index(bytes.len())] ^= flip;
        let is_refused = matches!(Record::from_bytes(id, &damaged), Err(RecordError::Damaged { .. }));
        prop_assert!(is_refused);
        // Such a record is refused for its contents.
        let _ = Record::from_bytes(RecordId(Digest::of(&damaged)), &damaged);
    }

    #[test]
    fn the_first_cause_is_named(
        rows in rows(0, 5..20), at in any::<prop::sample::Index>(), rank in any::<prop::sample::Index>(), what in 0usize..8,
    ) {
        let mut rows = rows;
        rows.iter_mut().for_each(|row| {
            row.weights = Some(Digest::of(b"weights"));
            for share in &mut row.shares {
                (share.input, share.gradient) = (Some(Digest128([1; 16])), Some(Digest128([2; 16])));
            }
        });
        let mut others = rows.clone();
        let (step, rank) = (at.index(rows.len()), rank.index(rows[0].shares.len()));
        let (row, all) = (&mut others[step], [
            Differing::Place, Differing::Input, Differing::Forward, Differing::Backward,
            Differing::Reduction, Differing::Skipped, Differing::Rate, Differing::Update,
        ]);
        // Its outcome differs as well.
        let flipped = |number: f64| f64::from_bits(number.to_bits() ^ 1);
        if what == 0 { row.epoch ^= 1; }
        if what <= 1 { row.shares[rank].input = Some(Digest128([3; 16])); }
        if what <= 2 { row.shares[rank].loss = flipped(row.shares[rank].loss); }
        if what <= 3 { row.shares[rank].gradient = Some(Digest128([4; 16])); }
        if what <= 4 { row.gradient_norm = flipped(row.gradient_norm); }
        if what == 5 { row.is_skipped ^= true; }
        if what == 6 { row.rate = f32::from_bits(row.rate.to_bits() ^ 1); }
        row.weights = Some(Digest::of(b"other weights"));
        others[step + 1..].iter_mut().for_each(|row| row.loss = flipped(row.loss));
        let found = first_difference(&rows, &others).expect("they differ");
        prop_assert_eq!((found.step, found.what), (step as u64, all[what]));
        let named = if (1..=3).contains(&what) { vec![rank as u32] } else { Vec::new() };
        prop_assert_eq!(found.virtual_ranks, named);
        prop_assert_eq!(first_difference(&rows, &rows), None);
    }
}

#[test]
fn documents_that_cannot_be_are_refused_and_later_formats_told_apart() {
    let rows = [StepRow {
        step: 0,
        epoch: 0,
        rate: 0.1,
        samples: 1,
        loss: 2.0,
        correct: 0,
        gradient_norm: 1.0,
        is_skipped: false,
        weights: None,
        shares: vec![ShareRow { samples: 1, loss: 2.0, correct: 0, input: None, gradient: None }],
    }];
    let good = record(&rows, vec![encoded(&rows)]);
    let read = |record: &Record| Record::from_bytes(record.id(), &record.to_bytes());
    assert_eq!(read(&good).unwrap(), good);
    let steps = |change: fn(&mut StepsTable)| {
        let mut steps = good.steps.clone();
        change(&mut steps);
        Record { steps, ..good.clone() }
    };
    let impossible = [
        steps(|steps| steps.first = 2),
        steps(|steps| steps.of = 0),
        steps(|steps| steps.digests_every = 0),
        steps(|steps| steps.parts.clear()),
        steps(|steps| (steps.end, steps.of) = (u64::MAX, u64::MAX)),
        Record { virtual_ranks: 0, ..good.clone() },
        Record { virtual_ranks: u32::MAX, ..good.clone() },
    ];
    for record in impossible {
        assert!(matches!(read(&record), Err(RecordError::Damaged { .. })), "{:?}", record.steps);
    }
    let later = Record { format: 3, ..good };
    assert!(matches!(read(&later), Err(RecordError::TooNew { found: 3, known: 2, .. })));
}

/// Steps with all digests, whose weights say who trained them.
fn trained(steps: std::ops::Range<u64>, differs_from: u64) -> Vec<StepRow> {
    let row = |step: u64| {
        let share = |rank: u8| ShareRow {
            samples: 16,
            loss: step as f64 + f64::from(rank),
            correct: 3,
            input: Some(Digest128([rank; 16])),
            gradient: Some(Digest128([if step >= differs_from && rank == 1 { 9 } else { rank }; 16])),
        };
        StepRow {
            step,
            epoch: (step / 100) as u32,
            rate: 0.1,
            samples: 32,
            loss: 2.0 * step as f64 + 1.0,
            correct: 6,
            gradient_norm: 1.0,
            is_skipped: false,
            weights: Some(Digest::of(&[u8::from(step >= differs_from)])),
            shares: vec![share(0), share(1)],
        }
    };
    steps.map(row).collect()
}

#[tokio::test]
async fn two_records_are_compared_by_the_parts_that_differ() {
    let (here, there) = (in_memory(), in_memory());
    let whole = put(&here, &trained(0..3_000, u64::MAX), "a").await;
    let same = put(&there, &trained(0..3_000, u64::MAX), "b").await;
    assert_eq!(whole.steps, same.steps);
    let compared = compare((&here, &whole), (&there, &same)).await.unwrap();
    assert!(compared.is_same() && compared.steps == [0, 3_000], "{compared:?}");

    for at in [0, 1_023, 1_024, 2_500] {
        let other = put(&there, &trained(0..3_000, at), "b").await;
        let found = compare((&here, &whole), (&there, &other)).await.unwrap().first.unwrap();
        assert_eq!((found.step, found.what, &found.virtual_ranks[..]), (at, Differing::Backward, &[1][..]));
    }
    // One that begins at a later step, and one that ended early.
    for (steps, at) in [(700..3_000, 2_000), (700..2_001, 2_000), (2_000..2_100, 2_000)] {
        let other = put(&there, &trained(steps, at), "b").await;
        let compared = compare((&here, &whole), (&there, &other)).await.unwrap();
        assert_eq!(compared.first.map(|found| found.step), Some(at));
    }
    let short = put(&there, &trained(0..500, u64::MAX), "b").await;
    let compared = compare((&here, &whole), (&there, &short)).await.unwrap();
    assert!(compared.is_same() && compared.steps == [0, 500], "{compared:?}");
}

#[tokio::test]
async fn records_are_found_by_the_beginning_of_their_id_or_the_only_one_of_a_run() {
    let records = in_memory();
    let missing = records.find("a").await.unwrap_err();
    assert!(missing.to_string().ends_with("there is none"), "{missing}");
    let one = put(&records, &trained(0..3, 9), "digits").await;
    let two = put(&records, &trained(0..3, 1), "cifar").await;
    for (asked, record) in [("digits", &one), ("cifar", &two), (&two.id().to_string()[..20], &two)] {
        let found = records.find(asked).await.unwrap();
        assert_eq!(&records.read(&found).await.unwrap(), record);
    }
    assert!(records.find("digit").await.unwrap_err().to_string().contains(&two.id().short()));
    assert!(matches!(records.find("").await, Err(RecordError::NoSuch { .. })));
    put(&records, &trained(0..3, 2), "cifar").await;
    assert!(matches!(records.find("cifar").await, Err(RecordError::Ambiguous { count: 2, .. })));
}

#[tokio::test]
async fn a_record_that_another_one_tells_more_of_takes_along_what_nobody_else_names() {
    let records = in_memory();
    let short = put(&records, &trained(0..1_500, u64::MAX), "a").await;
    let twin = put(&records, &trained(0..1_500, 7), "a").await;
    let long = put(&records, &trained(0..1_600, u64::MAX), "a").await;
    records.remove(short.id(), &short).await.unwrap();
    assert_eq!(records.list(None).await.unwrap().len(), 2);
    for (record, rows) in [(&twin, trained(0..1_500, 7)), (&long, trained(0..1_600, u64::MAX))] {
        for number in 0..2 {
            let part = records.steps(record, number).await.unwrap();
            let (start, end) = (number as usize * 1_024, rows.len().min((number as usize + 1) * 1_024));
            assert_eq!(encoded(&part), encoded(&rows[start..end]));
        }
    }
    // The steps of only the removed one are gone, with an error.
    assert!(matches!(records.steps(&short, 1).await, Err(RecordError::Store(_))));
    assert!(records.steps(&short, 0).await.is_ok(), "the longer one begins with it");
}

/// Losses of the 32 samples of a step.
fn losses_from(loss: f64) -> Vec<SampleLoss> {
    let of = |at: u64| SampleLoss {
        sample: 100 - at,
        position: at,
        virtual_rank: (at / 16) as u32,
        loss: loss + at as f64,
        answers: 1,
    };
    (0..32).map(of).collect()
}

#[tokio::test]
async fn saved_losses_stay_while_drafts_take_each_others_place() {
    let records = in_memory();
    let rows = trained(0..1_100, u64::MAX);
    let draft = put(&records, &rows[..20], "a").await;
    assert_eq!(records.losses(&draft, &rows[7]).await.unwrap(), None);
    records.put_losses(&draft, &rows[7], &losses_from(1.0)).await.unwrap();
    assert_eq!(records.with_step(draft.id(), &draft, &rows[7]).await.unwrap(), Some(draft.id()));

    // The next draft, another one past the end of the part, and the one that resumed from step 10.
    let mut before = draft.clone();
    for end in [30, 1_100] {
        let next = put(&records, &rows[..end], "a").await;
        records.remove(before.id(), &before).await.unwrap();
        assert_eq!(records.losses(&next, &rows[7]).await.unwrap(), Some(losses_from(1.0)), "{end} steps");
        assert_eq!(records.steps_with_losses(&next.run, &[&next]).await.unwrap(), [vec![7]]);
        before = next;
    }
    let resumed = put(&records, &trained(0..1_100, 10), "a").await;
    assert_eq!(records.losses(&resumed, &rows[7]).await.unwrap(), Some(losses_from(1.0)));

    // Saved beside a draft that is gone: the record that took its place shows them.
    records.put_losses(&draft, &rows[19], &losses_from(2.0)).await.unwrap();
    assert_eq!(records.with_step(draft.id(), &draft, &rows[19]).await.unwrap(), Some(before.id()));
    assert_eq!(records.losses(&before, &rows[19]).await.unwrap(), Some(losses_from(2.0)));
    // Another training of the run parted before that step.
    let both = records.steps_with_losses(&before.run, &[&before, &resumed]).await.unwrap();
    assert_eq!(both, [vec![7, 19], vec![7]]);
    let other_row = &trained(19..20, 10)[0];
    assert_eq!(records.losses(&resumed, other_row).await.unwrap(), None);
    // So did one of other data.
    let mut other_data = before.clone();
    other_data.data.plan = PlanId(Digest::of(b"another plan"));
    assert_eq!(records.losses(&other_data, &rows[7]).await.unwrap(), None);
    assert_eq!(records.steps_with_losses(&before.run, &[&other_data]).await.unwrap(), [Vec::<u64>::new()]);

    records.remove(before.id(), &before).await.unwrap();
    assert_eq!(records.with_step(before.id(), &before, &rows[19]).await.unwrap(), None, "nothing shows them");
    assert_eq!(records.losses(&resumed, &rows[7]).await.unwrap(), Some(losses_from(1.0)));
    records.remove(resumed.id(), &resumed).await.unwrap();
    assert!(records.objects_in("runs").await.unwrap().is_empty(), "they go with the last record");
}

#[tokio::test]
async fn two_programs_that_save_a_step_do_not_delete_the_file_of_the_other() {
    let records = in_memory();
    let rows = trained(0..20, u64::MAX);
    let record = put(&records, &rows, "a").await;
    let run = &record.run;
    let before = records.kept(Some(run)).await.unwrap()[run].stored;
    let one = records.put_losses(&record, &rows[7], &losses_from(1.0)).await.unwrap();
    assert_eq!(records.put_losses(&record, &rows[7], &losses_from(1.0)).await.unwrap(), one);
    assert_eq!(records.objects_in("runs/a/losses").await.unwrap().len(), 1, "twice does no harm");
    records.put_losses(&record, &rows[7], &losses_from(2.0)).await.unwrap();
    assert_eq!(records.objects_in("runs/a/losses").await.unwrap().len(), 2);
    let read = records.losses(&record, &rows[7]).await.unwrap().expect("one of them");
    assert!(read == losses_from(1.0) || read == losses_from(2.0), "one is read whole: {read:?}");

    let kept = records.kept(Some(run)).await.unwrap().remove(run).unwrap();
    assert_eq!(kept.stored.records, before.records);
    assert!(kept.stored.record_bytes > before.record_bytes + 2 * 32 * 36, "{:?}", kept.stored);
    records.remove_run(kept, false).await.unwrap();
    assert!(records.objects_in("runs").await.unwrap().is_empty());
}

#[test]
fn a_row_is_named_by_all_its_bits() {
    let row = &trained(7..8, u64::MAX)[0];
    // Saved losses lie under this name: another one would lose them.
    assert_eq!(row.digest().to_string(), "88fab4b8686fd4f2f91296abc8353dbdf09ad25167a5898c1b6426b6ffae77f9");
    let changed = |change: fn(&mut StepRow)| {
        let mut other = row.clone();
        change(&mut other);
        other.digest()
    };
    let others = [
        changed(|row| row.step += 1),
        changed(|row| row.epoch += 1),
        changed(|row| row.rate = f32::from_bits(row.rate.to_bits() ^ 1)),
        changed(|row| row.samples += 1),
        changed(|row| row.loss = f64::from_bits(row.loss.to_bits() ^ 1)),
        changed(|row| row.correct += 1),
        changed(|row| row.gradient_norm = f64::NAN),
        changed(|row| row.is_skipped = true),
        changed(|row| row.weights = None),
        changed(|row| row.shares[1].samples += 1),
        changed(|row| row.shares[1].loss = -row.shares[1].loss),
        changed(|row| row.shares[1].correct += 1),
        changed(|row| row.shares[1].input = None),
        changed(|row| row.shares[1].gradient = None),
        changed(|row| row.shares.truncate(1)),
    ];
    for (at, digest) in others.iter().enumerate() {
        assert!(*digest != row.digest() && !others[..at].contains(digest), "{at}");
    }
}

#[test]
fn losses_of_format_1_are_read_as_ever() {
    let golden = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/src/record/testdata/losses.1.arrow"));
    let golden = golden.unwrap_or_default();
    let written = encode_losses("it", 340, &losses_from(0.5)).unwrap();
    let hex = || written.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(golden == written, "the bytes of format 1 are no longer these, but {}", hex());
    assert_eq!(decode_losses(golden.into(), "it", 340).unwrap(), losses_from(0.5));
}

/// A record as the format before wrote it, without memory and writes of checkpoints.
const OF_FORMAT_1: &str = concat!(
    r#"{"format":1,"run":"digits-7","data":{"dataset":"digits","version":"VERSION","plan":"PLAN","q":"0.1","seed":7,"samples":1437},"#,
    r#""virtual_ranks":2,"arguments":["--epochs","4"],"settings":{"learning rate":"0.1"},"is_exact":true,"#,
    r#""steps":{"first":0,"end":0,"of":9,"digests_every":1,"parts":[]},"first_weights":"VERSION","weights":null,"#,
    r#""checkpoints":["000000000003-PLAN"],"launches":[{"first_step":0,"world":2,"started":1,"until":2,"version":"0.1.0","#,
    r#""program":null,"device":"cpu","processor":"x86_64"}],"ending":{"how":"stopped"}}"#,
    "\n"
);

#[test]
fn a_record_of_the_format_before_is_read_as_ever_and_keeps_its_name() {
    let text = OF_FORMAT_1.replace("VERSION", &Digest::of(b"v").to_string());
    let text = text.replace("PLAN", &Digest::of(b"p").to_string());
    let id = RecordId(Digest::of(text.as_bytes()));
    let record = Record::from_bytes(id, text.as_bytes()).unwrap();
    assert_eq!((record.format, record.launches[0].memory_bytes), (1, None));
    assert!(record.checkpoint_writes.is_empty() && record.checkpoints.len() == 1);
    assert_eq!((record.id(), String::from_utf8(record.to_bytes()).unwrap()), (id, text));
}

/// A record of format 2, with memory and writes of checkpoints.
const OF_FORMAT_2: &str = concat!(
    r#"{"format":2,"run":"digits-7","data":{"dataset":"digits","version":"VERSION","plan":"PLAN","q":"0.1","seed":7,"samples":1437},"#,
    r#""virtual_ranks":2,"arguments":["--epochs","4"],"settings":{"learning rate":"0.1"},"is_exact":true,"#,
    r#""steps":{"first":0,"end":0,"of":9,"digests_every":1,"parts":[]},"first_weights":"VERSION","weights":null,"#,
    r#""checkpoints":["000000000003-PLAN"],"checkpoint_writes":[{"name":"000000000003-PLAN","step":3,"at":5,"bytes":10,"#,
    r#""written_bytes":9,"millis":7}],"launches":[{"first_step":0,"world":2,"started":1,"until":2,"version":"0.1.0","#,
    r#""program":null,"device":"cpu","processor":"x86_64","memory_bytes":1024}],"ending":{"how":"stopped"}}"#,
    "\n"
);

#[test]
fn a_record_of_format_2_is_read_as_ever_and_keeps_its_name() {
    let text = OF_FORMAT_2.replace("VERSION", &Digest::of(b"v").to_string());
    let text = text.replace("PLAN", &Digest::of(b"p").to_string());
    let id = RecordId(Digest::of(text.as_bytes()));
    let record = Record::from_bytes(id, text.as_bytes()).unwrap();
    assert_eq!((record.format, record.launches[0].memory_bytes), (2, Some(1024)));
    let [write] = &record.checkpoint_writes[..] else { panic!("{:?}", record.checkpoint_writes) };
    assert_eq!((write.step, write.at, write.bytes, write.written_bytes, write.millis), (3, 5, 10, 9, 7));
    assert_eq!((record.id(), String::from_utf8(record.to_bytes()).unwrap()), (id, text));
}

#[test]
fn memory_and_checkpoints_are_no_difference_of_trainings() {
    let rows = trained(0..3, u64::MAX);
    let launch = |memory_bytes| Launch {
        first_step: 0,
        world: 2,
        started: 1,
        until: 2,
        version: "0.1.0".to_owned(),
        program: None,
        device: "cpu".to_owned(),
        processor: "x86_64".to_owned(),
        memory_bytes,
    };
    let name = format!("{:012}-{}", 3, Digest::of(b"c"));
    let write = |millis| CheckpointWritten {
        name: name.clone(),
        step: 3,
        at: 5,
        bytes: 10,
        written_bytes: 10,
        millis,
    };
    let of = |memory, millis| Record {
        launches: vec![launch(memory)],
        checkpoint_writes: vec![write(millis)],
        ..record(&rows, vec![encoded(&rows)])
    };
    let (one, other) = (of(Some(1 << 30), 7), of(None, 900));
    assert_eq!(setting_differences(&one, &other), []);
    let compared = Comparison::of_documents(&one, &other, None);
    assert!(compared.is_same() && compared.settings.is_empty(), "{compared:?}");
    let back = Record::from_bytes(one.id(), &one.to_bytes()).unwrap();
    assert_eq!(back, one);
}
