//! The columns that belong to the pictures of a batch and move with them: boxes, key points, masks and labels.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, FixedSizeListArray, Float32Array, LargeListArray, RecordBatch,
    UInt64Array, make_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Schema};
use shardd_transforms::{Companion, CompanionKind, Companions, Given, SampleError, Transform};
use shardfmt::row::{Lent, Memory};

use super::error::{LoadError, PictureError};
use super::samples::Samples;
use super::tensors::{metadata, refused, shape};

/// The columns of a chain's companions, in the order of their names.
#[derive(Debug)]
pub(super) struct Beside {
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    index: usize,
    name: String,
    kind: CompanionKind,
    /// Of masks that are pixels, their shape.
    shape: Option<Vec<usize>>,
    field: Field,
}

impl Beside {
    /// The columns that a chain declares.
    ///
    /// # Errors
    /// [`LoadError::Config`] if one is not there, or has other values than are declared.
    pub(super) fn new(transform: Option<&Transform>, columns: &Schema) -> Result<Self, LoadError> {
        let Some(transform) = transform else { return Ok(Self { columns: Vec::new() }) };
        let chain = transform.chain();
        if chain.batch.is_some() && !chain.companions.is_empty() {
            let message = "MixUp and CutMix mix labels of whole pictures: leave them out, or the companions";
            return Err(LoadError::Config(message.into()));
        }
        let drops_boxes = chain.transforms.iter().any(|op| op.contains("SanitizeBoundingBoxes"));
        let column = |(name, kind): (&String, &CompanionKind)| {
            let index = columns.index_of(name).map_err(|_| {
                LoadError::Config(format!("the transforms declare column {name:?}, and it is not there"))
            })?;
            let stored = columns.field(index);
            let shape = shape(stored);
            let field = made_field(stored, *kind, shape.as_deref(), transform.size())
                .filter(|_| !(drops_boxes && shape.as_ref().is_some_and(|shape| shape.len() > 2)))
                .ok_or_else(|| {
                    LoadError::Config(format!(
                        "column {name:?} is declared as {kind} and is {}: {}",
                        stored.data_type(),
                        expected(*kind)
                    ))
                })?;
            Ok(Column { index, name: name.clone(), kind: *kind, shape, field })
        };
        Ok(Self { columns: chain.companions.iter().map(column).collect::<Result<_, LoadError>>()? })
    }

    /// The columns that take the places of those stored.
    pub(super) fn fields(&self) -> impl Iterator<Item = (usize, &Field)> {
        self.columns.iter().map(|column| (column.index, &column.field))
    }

    /// Planes of a sample's masks.
    pub(super) fn planes(&self) -> u64 {
        let planes = |column: &Column| match (column.kind, column.shape.as_deref()) {
            (CompanionKind::Mask {}, Some([planes, _, _])) => *planes as u64,
            (CompanionKind::Mask {}, _) => 1,
            _ => 0,
        };
        self.columns.iter().map(planes).sum()
    }

    /// Bytes of a sample's masks in a batch.
    pub(super) fn bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.mask_bytes() as u64).sum()
    }

    /// The companions of a batch, and room for what becomes of them.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub(super) fn of<'a>(
        &'a self,
        batch: &'a RecordBatch,
        memory: &dyn Memory,
    ) -> Result<Vec<Moving<'a>>, LoadError> {
        self.columns.iter().map(|column| Moving::new(column, batch.column(column.index), memory)).collect()
    }
}

impl Column {
    fn mask_bytes(&self) -> usize {
        match (self.kind, self.field.data_type()) {
            (CompanionKind::Mask {}, DataType::FixedSizeList(_, width)) => *width as usize,
            _ => 0,
        }
    }
}

fn expected(kind: CompanionKind) -> &'static str {
    match kind {
        CompanionKind::Boxes { .. } => {
            "store a list of [left, top, right, bottom] or of another format's four numbers"
        }
        CompanionKind::KeyPoints {} => "store a list of [x, y]",
        CompanionKind::Mask {} => {
            "store a PNG, or uint8 of [height, width] or [planes, height, width]; planes are not dropped with boxes"
        }
        CompanionKind::Labels {} => "store a list with an entry for each box",
    }
}

fn item_of(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// Four numbers of a box, two of a point.
fn width_of(kind: CompanionKind) -> usize {
    if matches!(kind, CompanionKind::Boxes { .. }) { 4 } else { 2 }
}

/// The column of a batch in which a companion of this kind is; `None` if it is not stored as one.
fn made_field(
    stored: &Field,
    kind: CompanionKind,
    shape: Option<&[usize]>,
    [height, width]: [usize; 2],
) -> Option<Field> {
    let (data_type, metadata) = match kind {
        CompanionKind::Boxes { .. } | CompanionKind::KeyPoints {} => {
            let item = item_of(stored.data_type())?;
            let leaf = item_of(item.data_type()).unwrap_or(item).data_type();
            let numbers = Arc::new(Field::new("item", DataType::Float32, false));
            let one = DataType::FixedSizeList(numbers, width_of(kind) as i32);
            (leaf.is_numeric().then(|| DataType::LargeList(Arc::new(Field::new("item", one, false))))?, None)
        }
        CompanionKind::Mask {} => {
            let planes = match (stored.data_type(), shape) {
                (DataType::Binary | DataType::LargeBinary | DataType::BinaryView, _) => None,
                (DataType::FixedSizeList(item, _), Some([_, _])) if *item.data_type() == DataType::UInt8 => {
                    None
                }
                (DataType::FixedSizeList(item, _), Some([planes, _, _]))
                    if *item.data_type() == DataType::UInt8 =>
                {
                    Some(*planes)
                }
                _ => return None,
            };
            let shape: Vec<usize> = planes.into_iter().chain([height, width]).collect();
            let item = Arc::new(Field::new("item", DataType::UInt8, false));
            let count = i32::try_from(shape.iter().product::<usize>()).ok()?;
            (DataType::FixedSizeList(item, count), Some(metadata(&shape)))
        }
        CompanionKind::Labels {} => match stored.data_type() {
            DataType::List(item) | DataType::LargeList(item) => (DataType::LargeList(Arc::clone(item)), None),
            _ => return None,
        },
    };
    let metadata = metadata.unwrap_or_else(|| {
        let own = stored.metadata().iter().filter(|(key, _)| !key.starts_with("ARROW:extension:"));
        own.map(|(key, value)| (key.clone(), value.clone())).collect()
    });
    Some(Field::new(stored.name(), data_type, false).with_metadata(metadata))
}

/// A companion column of a batch on its way.
pub(super) struct Moving<'a> {
    column: &'a Column,
    array: &'a ArrayRef,
    stored: Stored<'a>,
    made: Made,
}

enum Stored<'a> {
    /// The numbers of row `r` are from `bounds[r]` to `bounds[r + 1]`; some rows have others than are declared, for a reason.
    Numbers {
        values: Float32Array,
        bounds: Vec<usize>,
        wrong: BTreeMap<usize, String>,
    },
    Mask(Samples<'a>),
    Lists {
        values: ArrayRef,
        bounds: Vec<usize>,
    },
}

enum Made {
    Numbers { values: Vec<f32>, ends: Vec<i64> },
    Mask { lent: Lent, written: usize },
    Kept { indices: Vec<u64>, ends: Vec<i64> },
}

impl<'a> Moving<'a> {
    fn new(column: &'a Column, array: &'a ArrayRef, memory: &dyn Memory) -> Result<Self, LoadError> {
        let (stored, made) = match column.kind {
            CompanionKind::Boxes { .. } | CompanionKind::KeyPoints {} => {
                (numbers(column, array)?, Made::Numbers { values: Vec::new(), ends: vec![0] })
            }
            CompanionKind::Mask {} => {
                let lent = memory.lend(array.len() * column.mask_bytes());
                let lent = lent.map_err(|source| LoadError::Memory { source })?;
                (Stored::Mask(Samples::of(array)), Made::Mask { lent, written: 0 })
            }
            CompanionKind::Labels {} => {
                let (bounds, values) = lists(array).expect("checked with the schema");
                (Stored::Lists { values, bounds }, Made::Kept { indices: Vec::new(), ends: vec![0] })
            }
        };
        Ok(Self { column, array, stored, made })
    }

    /// That of a row.
    ///
    /// # Errors
    /// [`PictureError`] if it has none, or another than is declared.
    pub(super) fn given(&self, row: usize) -> Result<Given<'_>, PictureError> {
        if self.array.is_null(row) {
            return Err(PictureError::Missing);
        }
        Ok(match &self.stored {
            Stored::Numbers { values, bounds, wrong } => {
                if let Some(reason) = wrong.get(&row) {
                    let (name, reason) = (self.column.name.clone(), reason.clone());
                    return Err(PictureError::Sample(SampleError::Companion { name, reason }));
                }
                let numbers = &values.values()[bounds[row]..bounds[row + 1]];
                match self.column.kind {
                    CompanionKind::Boxes { .. } => Given::Boxes(numbers),
                    _ => Given::KeyPoints(numbers),
                }
            }
            Stored::Mask(samples) => match &self.column.shape {
                Some(shape) => Given::Pixels { shape, bytes: samples.get(row).ok_or(PictureError::Missing)? },
                None => Given::Encoded(samples.get(row).ok_or(PictureError::Missing)?),
            },
            Stored::Lists { bounds, .. } => Given::Labels(bounds[row + 1] - bounds[row]),
        })
    }

    /// Takes the next one that was moved; `companions` are all of its picture, `at` is its index among them.
    pub(super) fn push(&mut self, row: usize, companions: &Companions, at: usize) {
        let size = self.column.mask_bytes();
        match (&mut self.made, &companions.all[at]) {
            (Made::Numbers { values, ends }, Companion::Boxes(boxes)) => {
                boxes.boxes.iter().for_each(|one| values.extend_from_slice(one));
                ends.push((values.len() / 4) as i64);
            }
            (Made::Numbers { values, ends }, Companion::KeyPoints(points)) => {
                points.points.iter().for_each(|one| values.extend_from_slice(one));
                ends.push((values.len() / 2) as i64);
            }
            (Made::Mask { lent, written }, Companion::Mask(mask)) => {
                let mut rest = &mut lent.as_mut_slice()[*written..][..size];
                for plane in mask.planes() {
                    let (one, others) = rest.split_at_mut(plane.pixels().len());
                    one.copy_from_slice(plane.pixels());
                    rest = others;
                }
                rest.fill(0);
                *written += size;
            }
            (Made::Kept { indices, ends }, _) => {
                let Stored::Lists { bounds, .. } = &self.stored else { unreachable!("made with it") };
                indices.extend(companions.kept.iter().map(|kept| (bounds[row] + kept) as u64));
                ends.push(indices.len() as i64);
            }
            _ => unreachable!("a companion is of the kind that is declared"),
        }
    }

    /// Stands for one that could not be moved: no boxes, points and labels, and a mask of zeros.
    pub(super) fn push_none(&mut self) {
        let size = self.column.mask_bytes();
        match &mut self.made {
            Made::Numbers { ends, .. } | Made::Kept { ends, .. } => ends.push(ends[ends.len() - 1]),
            Made::Mask { lent, written } => {
                lent.as_mut_slice()[*written..][..size].fill(0);
                *written += size;
            }
        }
    }

    /// The column of those that were taken, and its index.
    pub(super) fn finish(self) -> Result<(usize, ArrayRef), LoadError> {
        let field = &self.column.field;
        let item = item_of(field.data_type()).expect("lists");
        let listed = |values: ArrayRef, ends: Vec<i64>| {
            LargeListArray::try_new(Arc::clone(item), OffsetBuffer::new(ends.into()), values, None)
        };
        let array: ArrayRef = match self.made {
            Made::Numbers { values, ends } => {
                let DataType::FixedSizeList(number, width) = item.data_type() else {
                    unreachable!("boxes or points")
                };
                let values = Arc::new(Float32Array::from(values));
                let values = FixedSizeListArray::try_new(Arc::clone(number), *width, values, None);
                Arc::new(listed(Arc::new(values.map_err(refused)?), ends).map_err(refused)?)
            }
            Made::Mask { lent, written } => {
                let DataType::FixedSizeList(number, width) = field.data_type() else {
                    unreachable!("a mask")
                };
                let pixels =
                    ArrayData::builder(DataType::UInt8).len(written).add_buffer(lent.into_buffer(written));
                let pixels = make_array(pixels.build().map_err(refused)?);
                let masks = FixedSizeListArray::try_new(Arc::clone(number), *width, pixels, None);
                Arc::new(masks.map_err(refused)?)
            }
            Made::Kept { indices, ends } => {
                let Stored::Lists { values, .. } = &self.stored else { unreachable!("made with it") };
                let values = take(values, &UInt64Array::from(indices), None).map_err(refused)?;
                Arc::new(listed(values, ends).map_err(refused)?)
            }
        };
        Ok((self.column.index, array))
    }
}

/// The numbers of all rows, and where those of each begin.
fn numbers<'a>(column: &Column, array: &ArrayRef) -> Result<Stored<'a>, LoadError> {
    let (mut bounds, mut values) = lists(array).expect("checked with the schema");
    let (width, mut wrong) = (width_of(column.kind), BTreeMap::new());
    if let Some((inner, numbers)) = lists(&values) {
        for (row, pair) in bounds.windows(2).enumerate() {
            let mut lengths = inner[pair[0]..=pair[1]].windows(2).map(|pair| pair[1] - pair[0]);
            if let Some(found) = lengths.find(|length| *length != width) {
                let reason = format!("has a list of {found} numbers: give {width} for each");
                wrong.insert(row, reason);
            }
        }
        bounds.iter_mut().for_each(|bound| *bound = inner[*bound]);
        values = numbers;
    }
    let values = cast(&values, &DataType::Float32).map_err(refused)?;
    if values.null_count() > 0 {
        for (row, pair) in bounds.windows(2).enumerate() {
            if (pair[0]..pair[1]).any(|place| values.is_null(place)) {
                wrong.insert(row, "has null among its numbers: leave such samples out".into());
            }
        }
    }
    Ok(Stored::Numbers { values: values.as_primitive::<Float32Type>().clone(), bounds, wrong })
}

/// Where each list begins and the last one ends, and the entries of all; `None` if they are no lists.
fn lists(array: &ArrayRef) -> Option<(Vec<usize>, ArrayRef)> {
    let whole = |offset: i64| usize::try_from(offset).expect("offsets are not negative");
    Some(match array.data_type() {
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            (lists.offsets().iter().map(|&offset| whole(offset.into())).collect(), Arc::clone(lists.values()))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            (lists.offsets().iter().map(|&offset| whole(offset)).collect(), Arc::clone(lists.values()))
        }
        DataType::FixedSizeList(_, width) => {
            let (lists, width) = (array.as_fixed_size_list(), *width as usize);
            let start = lists.value_offset_at(0);
            ((0..=lists.len()).map(|row| start + row * width).collect(), Arc::clone(lists.values()))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, ListArray, UInt8Array};
    use arrow::datatypes::{Int32Type, SchemaRef};
    use proptest::prelude::*;
    use shardd_transforms::{Input, Place};
    use shardfmt::row::Fresh;

    use super::super::transformed::Transformed;
    use super::super::transforms::Transforms;
    use super::*;

    const SIDE: usize = 8;
    const CHAIN: &str = r#"{"column": "image", "transforms": [
        {"type": "RandomHorizontalFlip"}, {"type": "Resize", "size": [6, 4]}, {"type": "SanitizeBoundingBoxes", "min_size": 2}
    ], "companions": {"boxes": {"type": "boxes", "format": "XYXY"}, "classes": {"type": "labels"}, "mask": {"type": "mask"}},
    "on_error": "zero"}"#;

    fn pixels(rows: usize, width: usize, seed: u8) -> Vec<u8> {
        (0..rows * width).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
    }

    fn tensors(name: &str, values: Vec<u8>, dims: &[usize]) -> (Field, ArrayRef) {
        let (item, width) =
            (Arc::new(Field::new("item", DataType::UInt8, false)), dims.iter().product::<usize>());
        let array = FixedSizeListArray::new(
            Arc::clone(&item),
            width as i32,
            Arc::new(UInt8Array::from(values)),
            None,
        );
        let field = Field::new(name, array.data_type().clone(), false).with_metadata(metadata(dims));
        (field, Arc::new(array))
    }

    /// Boxes as lists of lists, as lists of four, or as numbers one after the other.
    fn stored(kind: usize, boxes: &[Vec<[i32; 4]>]) -> ArrayRef {
        let ends = |width: usize| {
            let lengths = boxes.iter().map(move |boxes| boxes.len() * width);
            OffsetBuffer::<i32>::from_lengths(lengths)
        };
        let numbers: ArrayRef =
            Arc::new(Int32Array::from_iter_values(boxes.iter().flatten().flatten().copied()));
        let number = Arc::new(Field::new("item", DataType::Int32, true));
        let list = |ends, values: ArrayRef| -> ArrayRef {
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            Arc::new(ListArray::new(item, ends, values, None))
        };
        match kind {
            0 => {
                let each = boxes.iter().flatten().map(|one| Some(one.iter().map(|&number| Some(number))));
                list(ends(1), Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(each)))
            }
            1 => list(ends(1), Arc::new(FixedSizeListArray::new(number, 4, numbers, None))),
            _ => list(ends(4), numbers),
        }
    }

    fn batch(kind: usize, boxes: &[Vec<[i32; 4]>]) -> RecordBatch {
        let rows = boxes.len();
        let classes = boxes.iter().enumerate().map(|(row, boxes)| {
            Some((0..boxes.len()).map(move |at| Some((10 * row + at) as i32)).collect::<Vec<_>>())
        });
        let boxes = stored(kind, boxes);
        let classes: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(classes));
        let image = tensors("image", pixels(rows, SIDE * SIDE * 3, 1), &[SIDE, SIDE, 3]);
        let mask = tensors("mask", pixels(rows, SIDE * SIDE, 7), &[SIDE, SIDE]);
        let plain = |name: &str, array: ArrayRef| (Field::new(name, array.data_type().clone(), true), array);
        let columns = [image, plain("boxes", boxes), plain("classes", classes), mask];
        let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        RecordBatch::try_new(schema, arrays).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn a_batch_has_the_companions_of_its_samples_however_they_are_stored(
            boxes in prop::collection::vec(prop::collection::vec(prop::array::uniform4(0..8i32), 0..4), 1..6),
            kind in 0..3usize, start in 0..3usize,
        ) {
            let start = start.min(boxes.len() - 1);
            let batch = batch(kind, &boxes).slice(start, boxes.len() - start);
            let transforms: Transforms = CHAIN.parse().unwrap();
            let transformed = Transformed::new(&transforms, &batch.schema(), 3).unwrap();
            let places: Vec<(u32, u64)> = (0..batch.num_rows() as u64).map(|row| (2, 40 + row)).collect();
            let changed = transformed.apply(&batch, &places, &Fresh).unwrap();
            prop_assert!(changed.failed.is_empty());
            let transform = Transform::new(
                transforms.pictures().unwrap().clone(), Input::of_shape(&[SIDE, SIDE, 3]).unwrap()).unwrap();
            let column = |name: &str| changed.batch.column_by_name(name).unwrap();
            let (image, mask) = (column("image").as_fixed_size_list(), column("mask").as_fixed_size_list());
            for (row, &(epoch, position)) in places.iter().enumerate() {
                let own = &boxes[start + row];
                let numbers: Vec<f32> = own.iter().flatten().map(|&number| number as f32).collect();
                let all = pixels(boxes.len(), SIDE * SIDE * 3, 1);
                let masks = pixels(boxes.len(), SIDE * SIDE, 7);
                let given = [
                    Given::Boxes(&numbers),
                    Given::Labels(own.len()),
                    Given::Pixels { shape: &[SIDE, SIDE], bytes: &masks[(start + row) * SIDE * SIDE..][..SIDE * SIDE] },
                ];
                let mut out = vec![0; transform.bytes()];
                let place = Place { seed: 3, epoch: epoch.into(), position };
                let picture = &all[(start + row) * SIDE * SIDE * 3..][..SIDE * SIDE * 3];
                let companions = transform.apply_with(picture, &given, place, &mut out).unwrap();
                let bytes = |list: ArrayRef| list.as_primitive::<arrow::datatypes::UInt8Type>().values().to_vec();
                prop_assert_eq!(bytes(image.value(row)), out);
                let Companion::Mask(expected) = companions.all[2].clone() else { panic!("a mask") };
                prop_assert_eq!(bytes(mask.value(row)), expected.into_pixels());
                let found = column("boxes").as_list::<i64>().value(row);
                let found = found.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
                prop_assert_eq!(found, companions.boxes().unwrap().boxes.concat());
                let classes = column("classes").as_list::<i64>().value(row);
                let kept: Vec<i32> = companions.kept.iter().map(|kept| (10 * (start + row) + kept) as i32).collect();
                prop_assert_eq!(classes.as_primitive::<Int32Type>().values().to_vec(), kept);
            }
        }
    }

    #[test]
    fn a_sample_with_a_wrong_box_is_treated_as_one_that_cannot_be_decoded() {
        let whole = batch(0, &[vec![[0, 0, 4, 4]], vec![], vec![[1, 1, 7, 7]]]);
        let three = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(0), Some(0), Some(4), Some(4)]),
            Some(vec![Some(1), Some(2), Some(3)]),
        ]);
        let item = Arc::new(Field::new("item", three.data_type().clone(), true));
        let boxes = ListArray::new(item, OffsetBuffer::from_lengths([1, 0, 1]), Arc::new(three), None);
        let mut columns = whole.columns().to_vec();
        columns[1] = Arc::new(boxes);
        let broken = RecordBatch::try_new(whole.schema(), columns).unwrap();
        let apply = |on_error: &str| {
            let transforms: Transforms = CHAIN.replace("\"zero\"", on_error).parse().unwrap();
            let transformed = Transformed::new(&transforms, &broken.schema(), 3).unwrap();
            transformed.apply(&broken, &[(0, 5), (0, 6), (0, 7)], &Fresh)
        };
        let changed = apply("\"zero\"").unwrap();
        assert_eq!((changed.failed[0].row, changed.failed[0].position, changed.batch.num_rows()), (2, 7, 3));
        assert!(changed.failed[0].reason.contains("a list of 3 numbers"), "{}", changed.failed[0].reason);
        assert_eq!(apply("\"skip\"").unwrap().batch.num_rows(), 2);
        assert!(matches!(apply("\"raise\""), Err(LoadError::Picture { position: 7, .. })));
    }

    #[test]
    fn planes_that_may_be_dropped_with_their_boxes_are_refused_wherever_that_is() {
        let stack = tensors("mask", pixels(1, 2 * SIDE * SIDE, 7), &[2, SIDE, SIDE]);
        let image = tensors("image", pixels(1, SIDE * SIDE * 3, 1), &[SIDE, SIDE, 3]);
        let boxes = stored(0, &[vec![[0, 0, 4, 4]]]);
        let boxes = (Field::new("boxes", boxes.data_type().clone(), true), boxes);
        let fields: Vec<Field> = [image, boxes, stack].into_iter().map(|(field, _)| field).collect();
        let refused = |op: &str| {
            let json = format!(
                r#"{{"column": "image", "transforms": [{{"type": "Resize", "size": [6, 4]}}, {op}],
                "companions": {{"boxes": {{"type": "boxes", "format": "XYXY"}}, "mask": {{"type": "mask"}}}}}}"#
            );
            Transformed::new(&json.parse().unwrap(), &Schema::new(fields.clone()), 0).is_err()
        };
        assert!(refused(r#"{"type": "SanitizeBoundingBoxes"}"#));
        assert!(refused(r#"{"type": "RandomApply", "transforms": [{"type": "SanitizeBoundingBoxes"}]}"#));
        assert!(!refused(r#"{"type": "ClampBoundingBoxes"}"#));
    }
}
