//! What passes from one block of a model to the next: a tensor, or several.
//!
//! Blocks share no graph, only values, so whatever passes between them is taken apart into flat tensors, whose gradients come back one by
//! one, and put together again as the types that the blocks declare.

use std::ops::Range;

use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, TensorData};

/// One tensor on its way, flat, with the shape it had.
#[derive(Clone, Debug)]
pub struct Part {
    shape: Vec<usize>,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    Float(Tensor<1>),
    Int(Tensor<1, Int>),
    Bool(Tensor<1, Bool>),
}

impl Part {
    /// A float tensor of this shape, outermost dimension first, row by row.
    ///
    /// # Panics
    /// If there are not as many values as the shape says.
    pub fn floats(values: Vec<f32>, shape: &[usize], device: &Device) -> Part {
        let count: usize = shape.iter().product();
        let values = Values::Float(Tensor::from_data(TensorData::new(values, [count]), device));
        Part { shape: shape.to_vec(), values }
    }

    /// An integer tensor, likewise.
    ///
    /// # Panics
    /// If there are not as many values as the shape says.
    pub fn ints(values: Vec<i64>, shape: &[usize], device: &Device) -> Part {
        let count: usize = shape.iter().product();
        let values = Values::Int(Tensor::from_data(TensorData::new(values, [count]), device));
        Part { shape: shape.to_vec(), values }
    }

    /// Its dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Some of its outermost entries.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Part {
        let length = self.shape.iter().skip(1).product::<usize>();
        let range = rows.start * length..rows.end * length;
        let values = match &self.values {
            Values::Float(tensor) => Values::Float(tensor.clone().slice([range])),
            Values::Int(tensor) => Values::Int(tensor.clone().slice([range])),
            Values::Bool(tensor) => Values::Bool(tensor.clone().slice([range])),
        };
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Part { shape, values }
    }

    /// The numbers of a float tensor, flat; `None` of others, which have no gradient.
    pub(crate) fn float(&self) -> Option<&Tensor<1>> {
        match &self.values {
            Values::Float(tensor) => Some(tensor),
            Values::Int(_) | Values::Bool(_) => None,
        }
    }

    /// Float values in this precision; others as they are.
    pub(crate) fn cast(self, to: FloatDType) -> Part {
        match self.values {
            Values::Float(tensor) => Part { values: Values::Float(tensor.cast(to)), ..self },
            values => Part { values, ..self },
        }
    }

    /// The same values without the graph they come from.
    pub(crate) fn inner(self) -> Part {
        let values = match self.values {
            Values::Float(tensor) => Values::Float(tensor.inner()),
            Values::Int(tensor) => Values::Int(tensor.inner()),
            Values::Bool(tensor) => Values::Bool(tensor.inner()),
        };
        Part { values, ..self }
    }

    /// The same values as the beginning of a graph; of float values, the gradient is kept if asked for.
    pub(crate) fn leaf(self, wants_gradient: bool) -> Part {
        let values = match self.values {
            Values::Float(tensor) if wants_gradient => {
                Values::Float(tensor.inner().autodiff().require_grad())
            }
            Values::Float(tensor) => Values::Float(tensor.inner().autodiff()),
            Values::Int(tensor) => Values::Int(tensor.autodiff()),
            Values::Bool(tensor) => Values::Bool(tensor.autodiff()),
        };
        Part { values, ..self }
    }
}

/// Tensors that pass between blocks: a tensor of any rank and kind, a tuple of such, or a struct of them by [`tensor_tree!`](crate::tensor_tree!).
///
/// Gradients flow back through float tensors.
pub trait TensorTree: Sized + 'static {
    /// Takes it apart, in a fixed order.
    fn into_parts(self, parts: &mut Vec<Part>);

    /// Puts it together again.
    ///
    /// # Panics
    /// If the parts are not those of this type: a block was given another one's output.
    fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Self;
}

/// All parts of it.
pub(crate) fn parts_of(flow: impl TensorTree) -> Vec<Part> {
    let mut parts = Vec::new();
    flow.into_parts(&mut parts);
    parts
}

/// The value of these parts.
pub(crate) fn from_parts<F: TensorTree>(parts: Vec<Part>) -> F {
    let mut parts = parts.into_iter();
    let flow = F::from_parts(&mut parts);
    assert!(parts.next().is_none(), "more tensors than {}", std::any::type_name::<F>());
    flow
}

macro_rules! tensor_leaf {
    ($kind:ident) => {
        impl<const D: usize> TensorTree for Tensor<D, $kind> {
            fn into_parts(self, parts: &mut Vec<Part>) {
                let shape = self.dims().to_vec();
                let count: usize = shape.iter().product();
                parts.push(Part { shape, values: Values::$kind(self.reshape([count])) });
            }

            fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Self {
                match parts.next() {
                    Some(Part { shape, values: Values::$kind(tensor) }) if shape.len() == D => {
                        let dims: [usize; D] = shape.try_into().expect("as many as it has");
                        tensor.reshape(dims)
                    }
                    other => panic!("a tensor of {D} dimensions was expected, not {other:?}"),
                }
            }
        }
    };
}

use burn::tensor::Float;
tensor_leaf!(Float);
tensor_leaf!(Int);
tensor_leaf!(Bool);

macro_rules! tuple_tree {
    ($($name:ident $part:ident),+) => {
        impl<$($name: TensorTree),+> TensorTree for ($($name,)+) {
            fn into_parts(self, parts: &mut Vec<Part>) {
                let ($($part,)+) = self;
                $($part.into_parts(parts);)+
            }

            fn from_parts(parts: &mut std::vec::IntoIter<Part>) -> Self {
                ($($name::from_parts(parts),)+)
            }
        }
    };
}

tuple_tree!(A a);
tuple_tree!(A a, B b);
tuple_tree!(A a, B b, C c);
tuple_tree!(A a, B b, C c, D d);

/// Makes a struct of tensors a [`TensorTree`], field by field.
///
/// ```
/// use burn::tensor::{Int, Tensor};
///
/// struct Tokens {
///     hidden: Tensor<3>,
///     places: Tensor<2, Int>,
/// }
/// shardd_trainer::tensor_tree!(Tokens { hidden, places });
/// ```
#[macro_export]
macro_rules! tensor_tree {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::tensor_tree::TensorTree for $name {
            fn into_parts(self, parts: &mut ::std::vec::Vec<$crate::tensor_tree::Part>) {
                let $name { $($field),+ } = self;
                $($crate::tensor_tree::TensorTree::into_parts($field, parts);)+
            }

            fn from_parts(parts: &mut ::std::vec::IntoIter<$crate::tensor_tree::Part>) -> Self {
                $(let $field = $crate::tensor_tree::TensorTree::from_parts(parts);)+
                $name { $($field),+ }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_apart_is_put_together_again() {
        let device = Device::flex();
        let floats = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &device);
        let ints = Tensor::<1, Int>::from_ints([7, 8], &device);
        let parts = parts_of((floats.clone(), (ints.clone(), floats.clone().transpose())));
        assert_eq!(
            parts.iter().map(|part| part.shape().to_vec()).collect::<Vec<_>>(),
            [vec![3, 2], vec![2], vec![2, 3]]
        );
        let (first, (second, third)) = from_parts::<(Tensor<2>, (Tensor<1, Int>, Tensor<2>))>(parts);
        first.into_data().assert_eq(&floats.to_data(), true);
        second.into_data().assert_eq(&ints.to_data(), true);
        third.into_data().assert_eq(&floats.transpose().to_data(), true);
    }

    #[test]
    #[should_panic(expected = "a tensor of 3 dimensions was expected")]
    fn another_shape_is_not_taken() {
        from_parts::<Tensor<3>>(parts_of(Tensor::<2>::ones([2, 2], &Device::flex())));
    }
}
