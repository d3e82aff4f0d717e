//! Pieces are neither too large nor too small, and lists of numbers are the same whichever reader reads them.

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, Encoding, ZstdLevel};
use ::parquet::file::properties::{WriterProperties, WriterVersion};
use arrow::array::{
    ArrayRef, ArrowPrimitiveType, FixedSizeBinaryArray, FixedSizeListArray, Int64Array, LargeListArray,
    ListArray, PrimitiveArray, StringArray, UInt8Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
};
use bytes::Bytes;
use proptest::prelude::*;
use shardfmt::row::RowCodec;

use super::*;
use crate::config::OnError;
use crate::source::{Faults, Piece};

/// The rows of lists, and how they are written.
#[derive(Clone, Debug)]
struct Written {
    /// For each row its items, if it is there. An item is a number that its type makes its own of, if it is there.
    rows: Vec<Option<Vec<Option<u32>>>>,
    nullable: bool,
    item_nullable: bool,
    kind: Kind,
    item: Item,
    version: WriterVersion,
    compression: Compression,
    /// Whether there is a dictionary, and how many bytes it may have.
    dictionary: Option<usize>,
    page_bytes: usize,
    group_rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Small,
    Large,
    Fixed(usize),
}

#[derive(Clone, Copy, Debug)]
enum Item {
    U8,
    I8,
    U16,
    U32,
    I64,
    F32,
    F64,
}

fn written() -> impl Strategy<Value = Written> {
    let kind = prop_oneof![Just(Kind::Small), Just(Kind::Large), (16..90usize).prop_map(Kind::Fixed)];
    let item = prop_oneof![
        4 => Just(Item::U8),
        1 => Just(Item::I8),
        1 => Just(Item::U16),
        1 => Just(Item::U32),
        1 => Just(Item::I64),
        1 => Just(Item::F32),
        1 => Just(Item::F64)
    ];
    let values = prop_oneof![Just(1u32), Just(3), Just(200), Just(256), Just(u32::MAX)];
    let row = move |kind, nullable, item_nullable, most: u32| {
        let length = match kind {
            Kind::Fixed(size) => (size..size + 1).boxed(),
            _ => prop_oneof![1 => Just(0), 1 => 1..10usize, 8 => 30..200usize].boxed(),
        };
        let share = if item_nullable { 0.1 } else { 0.0 };
        let item = (0..most, prop::bool::weighted(share)).prop_map(|(item, null)| (!null).then_some(item));
        let row = length.prop_flat_map(move |length| prop::collection::vec(item.clone(), length));
        let share = if nullable { 0.2 } else { 0.0 };
        (row, prop::bool::weighted(share)).prop_map(|(row, null)| (!null).then_some(row))
    };
    let shape = (kind, any::<bool>(), any::<bool>(), values);
    let rows = shape.prop_flat_map(move |(kind, nullable, item_nullable, most)| {
        let rows = prop::collection::vec(row(kind, nullable, item_nullable, most), 1..60);
        (rows, Just(nullable), Just(item_nullable), Just(kind))
    });
    let compression = prop_oneof![
        Just(Compression::UNCOMPRESSED),
        Just(Compression::SNAPPY),
        Just(Compression::ZSTD(ZstdLevel::default()))
    ];
    let version = prop_oneof![Just(WriterVersion::PARQUET_1_0), Just(WriterVersion::PARQUET_2_0)];
    let dictionary = prop::option::of(prop_oneof![Just(64usize), Just(1 << 20)]);
    let pages = prop_oneof![Just(100usize), Just(1000), Just(1 << 20)];
    (rows, item, version, compression, dictionary, pages, 1..80usize).prop_map(
        |(
            (rows, nullable, item_nullable, kind),
            item,
            version,
            compression,
            dictionary,
            page_bytes,
            group_rows,
        )| {
            Written {
                rows,
                nullable,
                item_nullable,
                kind,
                item,
                version,
                compression,
                dictionary,
                page_bytes,
                group_rows,
            }
        },
    )
}

impl Written {
    fn lists(&self) -> ArrayRef {
        match self.item {
            Item::U8 => self.lists_of::<UInt8Type>(|item| item as u8),
            Item::I8 => self.lists_of::<Int8Type>(|item| item as i8),
            Item::U16 => self.lists_of::<UInt16Type>(|item| item as u16),
            Item::U32 => self.lists_of::<UInt32Type>(|item| item),
            Item::I64 => self.lists_of::<Int64Type>(|item| i64::from(item) << 20),
            Item::F32 => self.lists_of::<Float32Type>(|item| item as f32),
            Item::F64 => self.lists_of::<Float64Type>(|item| f64::from(item) / 3.0),
        }
    }

    fn lists_of<T: ArrowPrimitiveType>(&self, number: impl Fn(u32) -> T::Native) -> ArrayRef {
        let size = if let Kind::Fixed(size) = self.kind { size } else { 0 };
        // Something lies beneath a null, too, where there has to be something.
        let hidden = vec![Some(7); size];
        let rows: Vec<&[Option<u32>]> =
            self.rows.iter().map(|row| row.as_deref().unwrap_or(&hidden)).collect();
        let items = rows.iter().flat_map(|row| row.iter().map(|item| item.map(&number)));
        let items: ArrayRef = Arc::new(items.collect::<PrimitiveArray<T>>());
        let nulls = self.nullable.then(|| self.rows.iter().map(Option::is_some).collect::<NullBuffer>());
        let field = Arc::new(Field::new("item", T::DATA_TYPE, self.item_nullable));
        let lengths = || rows.iter().map(|row| row.len());
        match self.kind {
            Kind::Small => {
                Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths()), items, nulls))
            }
            Kind::Large => {
                Arc::new(LargeListArray::new(field, OffsetBuffer::from_lengths(lengths()), items, nulls))
            }
            Kind::Fixed(size) => Arc::new(FixedSizeListArray::new(field, size as i32, items, nulls)),
        }
    }

    /// The file: columns before and after the lists, so that their places matter.
    fn file(&self) -> Bytes {
        let rows = self.rows.len();
        let lists = self.lists();
        let fields = [
            Field::new("number", DataType::Int64, false),
            Field::new("lists", lists.data_type().clone(), self.nullable),
            Field::new("text", DataType::Utf8, false),
            Field::new("again", lists.data_type().clone(), self.nullable),
        ];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(0..rows as i64)),
            lists.clone(),
            Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("row {row}")))),
            lists,
        ];
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), columns).unwrap();
        let properties = WriterProperties::builder()
            .set_writer_version(self.version)
            .set_compression(self.compression)
            .set_dictionary_enabled(self.dictionary.is_some())
            .set_dictionary_page_size_limit(self.dictionary.unwrap_or(1))
            .set_data_page_size_limit(self.page_bytes)
            .set_write_batch_size(32)
            .set_max_row_group_row_count(Some(self.group_rows));
        // Version 2 packs differences by itself, which is left to the general reader.
        let encoding = Encoding::PLAIN;
        let properties = properties.set_encoding(encoding).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap().into()
    }
}

/// The rows of a file as ingest reads them, canonical, and whether its lists were read by themselves.
fn read(file: Bytes) -> (Vec<Vec<u8>>, bool) {
    let source = ParquetSource::open(Inputs::in_memory("a.parquet", file), &IngestConfig::default()).unwrap();
    let codec = RowCodec::new(source.about.schema.clone()).unwrap();
    let mut rows = Vec::new();
    let mut push = |piece: Piece<'_>| {
        let mut faults = Faults::new(OnError::Fail, "a piece".to_owned());
        append(&codec, &(piece.read)(&mut faults)?.unwrap(), &mut rows);
        Ok(())
    };
    let largest_row = crate::Resources::threads(1).largest_row();
    source.pieces(&mut Feed { push: &mut push, on_error: OnError::Fail, largest_row }).unwrap();
    let file = &source.files.files[0];
    let groups = file.metadata.metadata().row_groups();
    let is_list = |group: &RowGroupMetaData| file.lists(group, group.num_rows() as u64).len() == 2;
    (rows, groups.iter().any(is_list))
}

fn append(codec: &RowCodec, batch: &RecordBatch, rows: &mut Vec<Vec<u8>>) {
    for row in 0..batch.num_rows() {
        let mut canonical = Vec::new();
        codec.encode(batch, row, &mut canonical).unwrap();
        rows.push(canonical);
    }
}

/// The same by the reader of the `parquet` crate.
fn read_generally(file: Bytes) -> Vec<Vec<u8>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let schema = canonical::canonical_schema("a.parquet".as_ref(), &reader.schema()).unwrap();
    let codec = RowCodec::new(schema.clone()).unwrap();
    let mut rows = Vec::new();
    for batch in reader {
        let batch = canonical::canonical_batch("a.parquet".as_ref(), &batch.unwrap(), &schema).unwrap();
        append(&codec, &batch, &mut rows);
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn lists_of_numbers_are_what_the_general_reader_reads(written in written()) {
        let file = written.file();
        let (rows, is_list) = read(file.clone());
        let items: usize = written.rows.iter().flatten().map(Vec::len).sum();
        if items >= 16 * written.rows.len() && written.rows.len() <= written.group_rows {
            prop_assert!(is_list, "the general reader read them");
        }
        prop_assert_eq!(rows, read_generally(file));
    }

    #[test]
    fn lists_in_damaged_pages_are_errors_at_most(
        written in written(), at: prop::sample::Index, byte: u8,
    ) {
        let mut file = written.file().to_vec();
        // The footer stays: that of its reader is another matter.
        let footer = u32::from_le_bytes(*file[file.len() - 8..].first_chunk().unwrap()) as usize + 8;
        let at = 4 + at.index(file.len() - footer - 4);
        file[at] = byte;
        let inputs = Inputs::in_memory("a.parquet", Bytes::from(file));
        let source = ParquetSource::open(inputs, &IngestConfig::default()).unwrap();
        let mut push = |piece: Piece<'_>| {
            let mut faults = Faults::new(OnError::Fail, "a piece".to_owned());
            (piece.read)(&mut faults).map(drop)
        };
        let largest_row = crate::Resources::threads(1).largest_row();
        let read = source.pieces(&mut Feed { push: &mut push, on_error: OnError::Fail, largest_row });
        if let Err(error) = read {
            prop_assert!(matches!(error, IngestError::Parquet { .. } | IngestError::Row { .. }), "{error:?}");
        }
    }
}

#[test]
fn a_long_row_group_of_lists_makes_pieces_of_whole_rows() {
    let items = Arc::new(Field::new("item", DataType::UInt8, false));
    let values = Arc::new(UInt8Array::from_iter_values((0..40_000_000u32).map(|at| (at % 251) as u8)));
    let lists = FixedSizeListArray::new(items, 4000, values, None);
    let batch = RecordBatch::try_from_iter([("x", Arc::new(lists) as ArrayRef)]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    let file = Bytes::from(writer.into_inner().unwrap());
    let source = ParquetSource::open(Inputs::in_memory("a.parquet", file), &IngestConfig::default()).unwrap();
    let mut found = Vec::new();
    let mut push = |piece: Piece<'_>| {
        let mut faults = Faults::new(OnError::Fail, "a piece".to_owned());
        found.push((piece.read)(&mut faults)?.unwrap());
        Ok(())
    };
    let largest_row = crate::Resources::threads(1).largest_row();
    source.pieces(&mut Feed { push: &mut push, on_error: OnError::Fail, largest_row }).unwrap();
    assert!(found.len() > 5 && found.iter().all(|piece| piece.num_rows() <= 1048), "{}", found.len());
    assert_eq!(concat_batches(&batch.schema(), &found).unwrap(), batch);
}

/// The rows of each piece of a file with this column.
fn pieces(column: ArrayRef, properties: WriterProperties) -> Vec<usize> {
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let inputs = Inputs::in_memory("a.parquet", Bytes::from(writer.into_inner().unwrap()));
    let source = ParquetSource::open(inputs, &IngestConfig::default()).unwrap();
    let mut rows = Vec::new();
    let mut push = |piece: Piece<'_>| {
        let mut faults = Faults::new(OnError::Fail, "a piece".to_owned());
        rows.push((piece.read)(&mut faults)?.unwrap().num_rows());
        Ok(())
    };
    let largest_row = crate::Resources::threads(1).largest_row();
    source.pieces(&mut Feed { push: &mut push, on_error: OnError::Fail, largest_row }).unwrap();
    rows
}

proptest! {
    #[test]
    fn pieces_cover_all_rows_and_end_with_pages_where_that_is_near(
        pages in prop::collection::vec(1..200u64, 0..40), rows in 1..3000u64, size in 1..500u64,
    ) {
        let ends: Vec<u64> = pages.iter().scan(0, |end, rows| { *end += rows; Some(*end) }).collect();
        let cuts = cuts_at(&ends, rows, size);
        let mut next = 0;
        for cut in &cuts {
            prop_assert_eq!(cut.start, next);
            prop_assert!(cut.end > cut.start && cut.end - cut.start <= size);
            let whole = ends.iter().any(|end| (cut.start + size.div_ceil(2)..=cut.start + size).contains(end));
            prop_assert!(!whole || cut.end == rows || ends.contains(&cut.end));
            next = cut.end;
        }
        prop_assert_eq!(next, rows);
    }
}

#[test]
fn no_page_is_read_for_two_pieces() {
    let values = vec![7u8; 3000 * 4000];
    let column: ArrayRef = Arc::new(FixedSizeBinaryArray::try_new(3000, values.into(), None).unwrap());
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let inputs = Inputs::in_memory("a.parquet", Bytes::from(writer.into_inner().unwrap()));
    let source = ParquetSource::open(inputs, &IngestConfig::default()).unwrap();
    let file = &source.files.files[0];
    let (input, group) = (file.file.open().unwrap(), file.metadata.metadata().row_group(0));
    let ends = page_ends(&input, group.column(0), 4000).unwrap();
    assert_eq!(ends.last(), Some(&4000));
    let size = file.rows_per_piece(&input, group, &[], 4000);
    let cuts = file.cuts(&input, group, 4000, size);
    assert!(cuts.len() > 1 && cuts.iter().all(|cut| ends.contains(&cut.end)), "{cuts:?} of {ends:?}");
    assert!(!ends.contains(&size), "nothing had to be moved");
}

#[test]
fn narrow_rows_make_large_pieces() {
    let column = Arc::new(Int64Array::from_iter_values(0..300_000));
    let rows = pieces(column, WriterProperties::default());
    let (last, others) = rows.split_last().unwrap();
    let large = MANY_ROWS as usize;
    assert!(others.iter().all(|rows| (large / 2..=large).contains(rows)) && *last <= large, "{rows:?}");
}

#[test]
fn texts_that_share_a_place_weigh_as_much_as_others() {
    let texts = ["a", "b", "c"].map(|text| text.repeat(50_000));
    let column: ArrayRef = Arc::new(StringArray::from_iter_values((0..2000).map(|row| &texts[row % 3])));
    let rows = pieces(column, WriterProperties::default());
    assert_eq!(rows.iter().sum::<usize>(), 2000);
    assert!(rows.iter().all(|rows| *rows <= 84), "{rows:?}");
}

#[test]
fn nulls_of_a_wide_type_weigh_as_much_as_values() {
    let column: ArrayRef = Arc::new(FixedSizeBinaryArray::new_null(1 << 20, 50));
    assert!(pieces(column, WriterProperties::default()).iter().all(|rows| *rows <= 4));
}
