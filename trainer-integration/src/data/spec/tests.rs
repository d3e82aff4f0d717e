use std::collections::HashMap;
use std::io::Cursor;

use arrow::array::{
    BinaryArray, FixedSizeListArray, Float64Array, ListArray, StringArray, StructArray, UInt8Array,
    UInt32Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{Fields, UInt32Type};

use super::*;
use crate::loss::IGNORED;
use crate::testkit::{digits_like, digits_like_rows};

fn rows(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn int(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn spec(rows: &RecordBatch, classes: usize) -> Result<InputSpec, InputError> {
    let options = InputOptions { classes: Some(classes), ..InputOptions::default() };
    InputSpec::from_schema(&rows.schema(), &options)
}

fn positions(rows: &RecordBatch) -> Vec<u64> {
    (100..100 + rows.num_rows() as u64).collect()
}

#[test]
fn tensors_are_scaled_by_the_range_of_their_type_or_the_one_given() {
    let rows = digits_like_rows(7, 1);
    let (values, labels) = digits_like(7, 1);
    for (input_max, divisor) in [(None, 255.0), (Some(16.0), 16.0)] {
        let options = InputOptions { input_max, ..InputOptions::default() };
        let spec = InputSpec::from_schema(&rows.schema(), &options).unwrap();
        assert_eq!((spec.shape(), spec.classes()), (InputShape::Image([1, 8, 8]), 10));
        let samples = spec.read(&rows, &positions(&rows)).unwrap();
        assert_eq!(samples.labels, labels);
        assert!(
            samples.features.iter().eq(values.iter().map(|value| value / divisor).collect::<Vec<_>>().iter())
        );
    }
}

#[test]
fn a_slice_of_rows_reads_as_those_rows() {
    let rows = digits_like_rows(7, 1);
    let spec = spec(&rows, 10).unwrap();
    let all = spec.read(&rows, &positions(&rows)).unwrap();
    let slice = rows.slice(3, 2);
    let part = spec.read(&slice, &[3, 4]).unwrap();
    assert_eq!(part.features, all.features[3 * 64..5 * 64]);
    let none = spec.read(&rows.slice(3, 0), &[]).unwrap();
    assert!(none.features.is_empty() && none.labels.is_empty());
}

#[test]
fn numeric_columns_are_features_and_text_is_left_out() {
    let rows = rows(vec![
        ("name", Arc::new(StringArray::from(vec!["a", "b"]))),
        ("age", int(&[30, 40])),
        ("height", Arc::new(Float64Array::from(vec![1.5, 1.75]))),
        ("label", int(&[0, 1])),
    ]);
    let spec = spec(&rows, 2).unwrap();
    assert_eq!(spec.shape(), InputShape::Features(2));
    assert_eq!(spec.read(&rows, &[0, 1]).unwrap().features, [30.0, 1.5, 40.0, 1.75]);
}

#[test]
fn encoded_images_are_decoded_and_brought_to_size() {
    let png = |side: u32| {
        let image = image::RgbImage::from_pixel(side, side, image::Rgb([255, 0, 51]));
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    };
    let (small, large) = (png(4), png(9));
    let images = BinaryArray::from(vec![&small[..], &large[..]]);
    let rows = rows(vec![("image", Arc::new(images)), ("label", int(&[0, 1]))]);
    let options = InputOptions { classes: Some(2), image_size: 4, ..InputOptions::default() };
    let spec = InputSpec::from_schema(&rows.schema(), &options).unwrap();
    assert_eq!(spec.shape(), InputShape::Image([3, 4, 4]));
    let features = spec.read(&rows, &[0, 1]).unwrap().features;
    for image in features.chunks(48) {
        assert!(image[..16].iter().all(|&red| red == 1.0), "{image:?}");
        assert!(image[16..32].iter().all(|&green| green == 0.0));
        assert!(image[32..].iter().all(|&blue| blue == 0.2));
    }
}

#[test]
fn errors_name_the_sample() {
    let message =
        |rows: RecordBatch| spec(&rows, 3).unwrap().read(&rows, &positions(&rows)).unwrap_err().to_string();
    let label = message(rows(vec![("x", int(&[1, 2])), ("label", int(&[2, 3]))]));
    assert!(
        label.contains("label 3") && label.contains("position 101") && label.contains("0 to 2"),
        "{label}"
    );
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let null = message(rows(vec![("x", nulls), ("label", int(&[0, 0]))]));
    assert!(null.contains("\"x\" is null") && null.contains("101"), "{null}");
    let garbage: ArrayRef = Arc::new(BinaryArray::from(vec![&b"no image"[..]]));
    let image = message(rows(vec![("image", garbage), ("label", int(&[0]))]));
    assert!(image.contains("position 100"), "{image}");
}

#[test]
fn schemas_that_do_not_say_enough_are_refused_with_the_way_out() {
    let message = |rows: &RecordBatch| {
        InputSpec::from_schema(&rows.schema(), &InputOptions::default()).unwrap_err().to_string()
    };
    assert!(message(&rows(vec![("x", int(&[1]))])).contains("--label"));
    assert!(message(&rows(vec![("x", int(&[1])), ("label", int(&[1]))])).contains("--classes"));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["cat"]));
    assert!(message(&rows(vec![("x", int(&[1])), ("label", text.clone())])).contains("whole numbers"));
    let only_text = rows(vec![("x", text), ("label", int(&[1]))]);
    assert!(spec(&only_text, 2).unwrap_err().to_string().contains("numeric columns"));
}

#[test]
fn a_tensor_whose_shape_does_not_fit_is_refused() {
    let schema = digits_like_rows(1, 1).schema();
    let mut fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    let cases = [
        ("[8,8]", true),
        ("[64]", true),
        ("[1,8,9]", false),
        ("[1,1,8,8]", false),
        ("[8,8],\"permutation\":[0,1]", true),
        ("[8,8],\"permutation\":[1,0]", false),
    ];
    for (shape, accepted) in cases {
        let metadata = HashMap::from([
            ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
            ("ARROW:extension:metadata".to_owned(), format!("{{\"shape\":{shape}}}")),
        ]);
        fields[0].set_metadata(metadata);
        let spec = InputSpec::from_schema(&Schema::new(fields.clone()), &InputOptions::default());
        assert_eq!(spec.is_ok(), accepted, "{shape}");
    }
}

fn sequences(values: Vec<u8>, width: i32) -> RecordBatch {
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let tokens = FixedSizeListArray::new(Arc::clone(&item), width, Arc::new(UInt8Array::from(values)), None);
    let schema = Schema::new(vec![Field::new("tokens", DataType::FixedSizeList(item, width), false)]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(tokens)]).unwrap()
}

#[test]
fn sequences_ask_for_the_next_of_each_token() {
    let rows = sequences(vec![1, 2, 3, 4, 5, 6, 7, 8], 4);
    let spec = InputSpec::from_schema(&rows.schema(), &InputOptions::default()).unwrap();
    assert_eq!((spec.shape(), spec.classes()), (InputShape::Tokens(3), 256));
    let samples = spec.read(&rows, &[0, 1]).unwrap();
    assert_eq!(samples.features, [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]);
    assert_eq!(samples.labels, [2, 3, 4, 6, 7, 8]);
    let few = InputOptions { classes: Some(7), ..InputOptions::default() };
    let spec = InputSpec::from_schema(&rows.schema(), &few).unwrap();
    let error = spec.read(&rows, &[4, 5]).unwrap_err().to_string();
    assert!(error.contains("position 5") && error.contains('7'), "{error}");
    let short = InputSpec::from_schema(&sequences(vec![1, 2], 1).schema(), &InputOptions::default());
    assert!(matches!(short, Err(InputError::Sequence { width: 1, vocabulary: 256 })), "{short:?}");
}

fn rows_of_columns() -> RecordBatch {
    rows(vec![("x", int(&[1, 2])), ("label", int(&[0, 1]))])
}

#[test]
fn packed_sequences_ask_for_the_next_token_of_a_document() {
    let plain = sequences(vec![1, 2, 3, 4, 5, 6, 7, 0], 4);
    let starts = ListArray::from_iter_primitive::<UInt32Type, _, _>([
        Some(vec![Some(0), Some(2)]),
        Some(vec![Some(0)]),
    ]);
    let lengths: ArrayRef = Arc::new(UInt32Array::from(vec![4, 3]));
    let with = |more: Vec<(&str, ArrayRef)>| {
        let tokens = ("tokens", Arc::clone(plain.column(0)));
        RecordBatch::try_from_iter(std::iter::once(tokens).chain(more)).unwrap()
    };
    let rows = with(vec![("documents", Arc::new(starts.clone())), ("length", Arc::clone(&lengths))]);
    let spec = InputSpec::from_schema(&rows.schema(), &InputOptions::default()).unwrap();
    assert_eq!(spec.shape(), InputShape::PackedTokens(3));
    let samples = spec.read(&rows, &[0, 1]).unwrap();
    assert_eq!(samples.features, [1.0, 2.0, 3.0, 0.0, 0.0, 2.0, 5.0, 6.0, 7.0, 0.0, 0.0, 0.0]);
    assert_eq!(samples.labels, [2, IGNORED, 4, 6, 7, IGNORED]);
    // Over the borders of documents, but not into padding.
    let causal = InputOptions { attention: Some(Attention::Causal), ..InputOptions::default() };
    let spec = InputSpec::from_schema(&rows.schema(), &causal).unwrap();
    assert_eq!(spec.read(&rows, &[0, 1]).unwrap().labels, [2, 3, 4, 6, 7, IGNORED]);
    // Joined and cut documents are one text, unless it is asked for.
    let joined = with(vec![("documents", Arc::new(starts.clone()))]);
    let spec = InputSpec::from_schema(&joined.schema(), &InputOptions::default()).unwrap();
    assert_eq!(spec.shape(), InputShape::Tokens(3));
    let block = InputOptions { attention: Some(Attention::BlockCausal), ..InputOptions::default() };
    let spec = InputSpec::from_schema(&joined.schema(), &block).unwrap();
    assert_eq!(spec.read(&joined, &[0, 1]).unwrap().labels, [2, IGNORED, 4, 6, 7, 0]);
    assert!(matches!(
        InputSpec::from_schema(&plain.schema(), &block),
        Err(InputError::NoDocuments { column }) if column == "tokens"
    ));
    // A model that takes documents is evaluated on a text, and one that does not on documents.
    let text = InputSpec::from_schema(&joined.schema(), &InputOptions::default()).unwrap();
    let as_documents = text.for_model_of(InputShape::PackedTokens(3), &joined.schema());
    assert_eq!(as_documents.read(&joined, &[0, 1]).unwrap().labels, [2, IGNORED, 4, 6, 7, 0]);
    let as_text = InputSpec::from_schema(&rows.schema(), &InputOptions::default()).unwrap();
    let as_text = as_text.for_model_of(InputShape::Tokens(3), &rows.schema());
    assert_eq!(as_text.read(&rows, &[0, 1]).unwrap().features, [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]);
    assert_eq!(as_text.read(&rows, &[0, 1]).unwrap().labels, [2, 3, 4, 6, 7, IGNORED]);
    // Of a conversation, only the tokens that are marked have a loss.
    let item = Arc::new(arrow::datatypes::Field::new("item", DataType::UInt8, false));
    let marks = UInt8Array::from(vec![1, 0, 1, 1, 0, 1, 0, 0]);
    let mask: ArrayRef = Arc::new(FixedSizeListArray::new(item, 4, Arc::new(marks), None));
    let (documents, length) =
        (("documents", Arc::new(starts.clone()) as ArrayRef), ("length", Arc::clone(&lengths)));
    let chats = with(vec![documents, length, ("loss_mask", Arc::clone(&mask))]);
    let spec = InputSpec::from_schema(&chats.schema(), &InputOptions::default()).unwrap();
    assert_eq!(spec.read(&chats, &[0, 1]).unwrap().labels, [IGNORED, IGNORED, 4, 6, IGNORED, IGNORED]);
    let chat = with(vec![("loss_mask", mask)]);
    let spec = InputSpec::from_schema(&chat.schema(), &InputOptions::default()).unwrap();
    assert_eq!(spec.read(&chat, &[0, 1]).unwrap().labels, [IGNORED, 3, 4, 6, IGNORED, IGNORED]);
    // A column that happens to be called length makes no packed sequences.
    let other = with(vec![("length", Arc::clone(&lengths))]);
    let spec = InputSpec::from_schema(&other.schema(), &InputOptions::default()).unwrap();
    assert_eq!(spec.shape(), InputShape::Tokens(3));
    let null: ArrayRef = Arc::new(UInt32Array::from(vec![Some(4), None]));
    let nulls = with(vec![("documents", Arc::new(starts.clone())), ("length", null)]);
    let spec = InputSpec::from_schema(&nulls.schema(), &InputOptions::default()).unwrap();
    assert!(matches!(spec.read(&nulls, &[4, 5]), Err(InputError::Null { position: 5, .. })));
    let table = rows_of_columns();
    let chosen =
        InputOptions { attention: Some(Attention::Causal), classes: Some(3), ..InputOptions::default() };
    assert!(matches!(InputSpec::from_schema(&table.schema(), &chosen), Err(InputError::NoSequences { .. })));
    let short: ArrayRef = Arc::new(UInt32Array::from(vec![2, 3]));
    let broken = with(vec![("documents", Arc::new(starts)), ("length", short)]);
    let spec = InputSpec::from_schema(&broken.schema(), &InputOptions::default()).unwrap();
    let error = spec.read(&broken, &[4, 5]).unwrap_err().to_string();
    assert!(
        error.contains("position 4") && error.contains("begin at 0, 2,") && error.contains("2 tokens"),
        "{error}"
    );
}

#[test]
fn text_labels_are_numbered_by_the_list_of_classes() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["dog", "cat", "dog"]));
    let rows = rows(vec![("x", Arc::new(Float64Array::from(vec![0.1, 0.2, 0.3]))), ("label", text)]);
    let names = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
    let with = |class_names| InputOptions { class_names, ..InputOptions::default() };
    let spec = InputSpec::from_schema(&rows.schema(), &with(names(&["bird", "cat", "dog"]))).unwrap();
    assert_eq!(spec.classes(), 3);
    assert_eq!(spec.read(&rows, &positions(&rows)).unwrap().labels, [2, 1, 2]);
    let unlisted = InputSpec::from_schema(&rows.schema(), &with(None)).unwrap_err().to_string();
    assert!(unlisted.contains("does not list the classes"), "{unlisted}");
    let few = InputSpec::from_schema(&rows.schema(), &with(names(&["cat"]))).unwrap();
    let unknown = few.read(&rows, &positions(&rows)).unwrap_err().to_string();
    assert!(unknown.contains("\"dog\" of the sample at position 100"), "{unknown}");
}

/// Two rows, of which the first has no features.
fn sparse_rows(entries: Vec<(Option<u32>, Option<f32>)>, labels: &[i64]) -> RecordBatch {
    let indices = UInt32Array::from_iter(entries.iter().map(|(index, _)| *index));
    let values = Float32Array::from_iter(entries.iter().map(|(_, value)| *value));
    let parts = Fields::from(vec![
        Field::new("index", DataType::UInt32, true),
        Field::new("value", DataType::Float32, true),
    ]);
    let entries = StructArray::new(parts.clone(), vec![Arc::new(indices), Arc::new(values)], None);
    let item = Arc::new(Field::new("item", DataType::Struct(parts), true));
    let ends = OffsetBuffer::from_lengths([0, entries.len()]);
    let lists: ArrayRef = Arc::new(ListArray::new(item, ends, Arc::new(entries), None));
    rows(vec![("label", int(labels)), ("qid", int(&[1, 1])), ("features", lists)])
}

#[test]
fn a_sparse_column_is_read_by_its_present_features() {
    let rows = sparse_rows(vec![(Some(1), Some(0.5)), (Some(7), Some(-2.0))], &[-1, 1]);
    let options = |features| InputOptions { classes: Some(2), features, ..InputOptions::default() };
    let spec = InputSpec::from_schema(&rows.schema(), &options(Some(8))).unwrap();
    assert_eq!(spec.shape(), InputShape::Sparse(8));
    let samples = spec.read(&rows, &positions(&rows)).unwrap();
    // The first row has none: the first feature, with value 0.
    assert_eq!(samples.features, [0.0, 0.0, 0.0, 0.0, 1.0, 7.0, 0.5, -2.0]);
    assert_eq!(samples.labels, [0, 1], "the classes of libsvm");
    let second = spec.read(&rows.slice(1, 1), &[101]).unwrap();
    assert_eq!((second.features, second.labels), (vec![1.0, 7.0, 0.5, -2.0], vec![1]));
    let refusal = |features, rows: &RecordBatch| {
        let spec = InputSpec::from_schema(&rows.schema(), &options(features));
        spec.and_then(|spec| spec.read(rows, &positions(rows))).unwrap_err().to_string()
    };
    let outside = refusal(Some(7), &rows);
    assert!(outside.contains("index 7") && outside.contains("position 101"), "{outside}");
    assert!(refusal(None, &rows).contains("give --features"));
    assert!(refusal(Some(1 << 25), &rows).contains("at most 16777216"));
    for entry in [(None, Some(1.0)), (Some(1), None)] {
        let null = refusal(Some(8), &sparse_rows(vec![entry], &[0, 1]));
        assert!(null.contains("null in the sample at position 101"), "{null}");
    }
    let dense = digits_like_rows(3, 1);
    assert!(refusal(Some(8), &dense).contains("there is none"));
}
