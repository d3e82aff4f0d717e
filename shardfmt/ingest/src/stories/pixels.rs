//! Images decoded at ingest.

use arrow::array::{AsArray, BinaryArray, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, UInt8Type};
use image::{DynamicImage, GrayImage, RgbaImage};

use super::*;

fn decode() -> IngestConfig {
    IngestConfig { decode: true, ..sequential() }
}

fn resize(size: &str) -> IngestConfig {
    IngestConfig { resize: Some(size.parse().unwrap()), ..decode() }
}

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn pixels(ingested: &Ingested, column: &str) -> Vec<u8> {
    let column = ingested.column(column);
    column.as_fixed_size_list().values().as_primitive::<UInt8Type>().values().to_vec()
}

#[test]
fn decoded_images_are_tensors_of_height_width_and_three_colours() {
    let rgb = RgbImage::from_fn(2, 1, |x, _| image::Rgb([10, 20, x as u8]));
    let grey = GrayImage::from_pixel(2, 1, image::Luma([7]));
    let clear = RgbaImage::from_pixel(2, 1, image::Rgba([1, 2, 3, 0]));
    let files = [
        ("a/1.png", encoded(rgb, ImageFormat::Png)),
        ("a/2.bmp", encoded(grey, ImageFormat::Bmp)),
        ("b/3.png", encoded(clear, ImageFormat::Png)),
    ];
    let directory = directory(&files);
    let archive = directory.path().join("all.tgz");
    std::fs::write(&archive, gzip(&tar(&files))).unwrap();
    let from_archive = run(&archive, &decode(), 2).unwrap();
    std::fs::remove_file(&archive).unwrap();
    for ingested in [run(directory.path(), &decode(), 2).unwrap(), from_archive] {
        let field = ingested.manifest.schema.field(0);
        assert_eq!(field.data_type(), &DataType::new_fixed_size_list(DataType::UInt8, 6, false));
        assert_eq!(
            ingested.metadata("image", "ARROW:extension:name").as_deref(),
            Some("arrow.fixed_shape_tensor")
        );
        assert_eq!(
            ingested.metadata("image", "ARROW:extension:metadata").as_deref(),
            Some(r#"{"shape":[1,2,3]}"#)
        );
        assert_eq!(ingested.integers("label"), [0, 0, 1]);
        assert_eq!(pixels(&ingested, "image"), [[10, 20, 0, 10, 20, 1], [7; 6], [1, 2, 3, 1, 2, 3]].concat());
    }
}

#[test]
fn all_are_of_one_size_or_brought_to_it() {
    let plain =
        |width, height| encoded(RgbImage::from_pixel(width, height, image::Rgb([9, 8, 7])), ImageFormat::Png);
    let files =
        [("1.png", plain(4, 2)), ("2.png", plain(4, 2)), ("3.png", plain(2, 4)), ("4.png", plain(9, 9))];
    let samples = files
        .clone()
        .map(|(name, bytes)| [(name, bytes), (name.trim_end_matches("png"), vec![b'1'])])
        .concat();
    let named: Vec<(String, Vec<u8>)> = samples
        .iter()
        .map(|(name, bytes)| {
            (if name.ends_with('.') { format!("{name}cls") } else { (*name).to_owned() }, bytes.clone())
        })
        .collect();
    let inputs = [
        directory(&files),
        directory(&[("all.tar", tar(&files))]),
        directory(&[("all.tar", tar(&borrowed(&named)))]),
    ];
    for directory in inputs {
        let text = refusal(directory.path(), &decode());
        assert!(text.contains("3.png") && text.contains("is 2x4, where the first is 4x2"), "{text}");
        let skipped =
            run(directory.path(), &IngestConfig { on_error: OnError::Skip, ..decode() }, 1).unwrap();
        assert_eq!((skipped.manifest.sample_count(), skipped.left_out().len()), (2, 2));
        let resized = run(directory.path(), &resize("3x5"), 2).unwrap();
        assert_eq!(
            resized.metadata("image", "ARROW:extension:metadata").as_deref(),
            Some(r#"{"shape":[5,3,3]}"#)
        );
        assert_eq!(pixels(&resized, "image"), [9, 8, 7].repeat(4 * 15));
    }
}

/// Decoders have code of their own for each kind of processor. Their output must not depend on it, as version
/// ids would then, too.
#[test]
fn pixels_are_the_same_on_every_machine() {
    let noise = |x: u32, y: u32| [(x * y * 7) as u8, (x * 13 + y) as u8, (y * y) as u8];
    let picture = RgbImage::from_fn(37, 23, |x, y| image::Rgb(noise(x, y)));
    let files = [("1.jpg", ImageFormat::Jpeg), ("2.png", ImageFormat::Png), ("3.webp", ImageFormat::WebP)]
        .map(|(name, format)| (name, encoded(picture.clone(), format)));
    let directory = directory(&files);
    let digests: Vec<String> = [decode(), resize("16x16"), resize("50x31")]
        .iter()
        .map(|config| {
            shardfmt::Digest::of(&pixels(&run(directory.path(), config, 2).unwrap(), "image")).short()
        })
        .collect();
    assert_eq!(digests, ["23ba0d6d578d", "dc35ba3292ad", "4087bb1897f7"]);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for text in ["", "224", "0x5", "224x", "5x5x5", "99999x99999"] {
        assert!(text.parse::<ImageSize>().is_err(), "{text}");
    }
    let directory = directory(&[("1.png", png(1)), ("t/data.csv", b"a\n1\n".to_vec())]);
    let config = IngestConfig { resize: Some("4x4".parse().unwrap()), ..sequential() };
    assert!(refusal(directory.path(), &config).contains("stay encoded"));
    let text = refusal(&directory.path().join("t/data.csv"), &decode());
    assert!(text.contains("has no encoded images"), "{text}");
    let recorded = serde_json::to_string(&resize("8x6")).unwrap();
    assert!(recorded.contains(r#""resize":"8x6""#), "{recorded}");
    assert_eq!(serde_json::from_str::<IngestConfig>(&recorded).unwrap(), resize("8x6"));
}

#[test]
fn images_of_hugging_face_tables_stay_as_they_are() {
    let bytes = BinaryArray::from_iter_values([png(1), png(2)]);
    let paths = StringArray::from(vec![Some("1.png"), None]);
    let image = StructArray::from(vec![
        (
            Field::new("bytes", DataType::Binary, true).into(),
            std::sync::Arc::new(bytes) as arrow::array::ArrayRef,
        ),
        (Field::new("path", DataType::Utf8, true).into(), std::sync::Arc::new(paths) as _),
    ]);
    let batch = RecordBatch::try_from_iter([("image", std::sync::Arc::new(image) as arrow::array::ArrayRef)])
        .unwrap();
    let directory = directory(&[]);
    let path = directory.path().join("train.parquet");
    write_parquet(path.clone(), &batch);
    let ingested = run(&path, &sequential(), 1).unwrap();
    assert_eq!(ingested.column("image").as_struct(), batch.column(0).as_struct());
}
