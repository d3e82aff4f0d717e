//! A block as the engine sees it: lists of numbers, and a pass from parts to parts. Here burn's modules meet the flat buffers in which numbers are
//! reduced, updated and saved.

use std::fmt::Debug;

use burn::module::{Flag, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor, TensorData};

use crate::block::{Block, Pass};
use crate::tensor_tree::{Part, from_parts, parts_of};
use crate::weights::{Buffer, Parameter};

/// A [`Block`] without its types.
pub trait FlatBlock: Send + Debug {
    /// Its parameters in the order of its flat buffer: first those that are trained, then those that are frozen.
    fn parameters(&self) -> &[Parameter];

    /// Its running numbers.
    fn buffers(&self) -> &[Buffer];

    /// How many numbers of an input are summed over all virtual ranks before the pass; 0 if none.
    fn summary_len(&self) -> usize;

    /// See [`Block::wants_full_input`].
    fn wants_full_input(&self) -> bool {
        false
    }

    /// The first values of its flat buffer.
    ///
    /// # Panics
    /// If they have been forgotten.
    fn initial(&self, seed: u64) -> Vec<f32>;

    /// The reason why its numbers may differ from place to place.
    fn objection(&self) -> Option<String>;

    /// The block with these numbers: one flat tensor for each parameter, and for each buffer.
    fn load(&self, parameters: &[Tensor<1>], buffers: &[Tensor<1>], used: Use) -> Box<dyn Loaded>;

    /// Lets go of the first values, which are in use by now.
    fn forget_initial(&mut self);

    /// Gives it a name, which its parameters' names begin with.
    fn rename(&mut self, name: &str);

    /// Sets again how much of the weight decay applies to each trained parameter, by its name and shape.
    fn decay(&mut self, share: &dyn Fn(&str, &[usize]) -> f32);

    /// Freezes trained parameters, by their names: they move behind those that are still trained, in the order of
    /// the module.
    fn freeze(&mut self, is_frozen: &dyn Fn(&str) -> bool);
}

/// The purpose of a loaded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Passes that evaluate.
    Evaluation,
    /// Passes that train, but are not gone back through: with all that is done while training, and without a graph.
    Forward,
    /// Passes that train: parameters are the beginning of a graph.
    Training,
}

/// A block with its numbers.
pub trait Loaded: Debug {
    /// See [`Block::forward`].
    fn forward(&self, input: Vec<Part>, pass: &mut Pass) -> Vec<Part>;

    /// See [`Block::summarise`].
    ///
    /// # Panics
    /// If the block has a [`Block::summary_len`], but no summary.
    fn summarise(&self, input: Vec<Part>) -> Tensor<1>;

    /// Adds the gradients of the trained parameters, flat and in order, to the end of a buffer; zeros for
    /// parameters without a part in the loss.
    fn take_gradient(&self, found: Option<&mut Gradients>, into: &mut Vec<f32>);

    /// The same, one tensor of 32 bits after the other, where they are.
    fn take_gradient_there(&self, found: Option<&mut Gradients>, into: &mut Vec<Tensor<1>>);

    /// Its buffers after the passes it has made, flat and in no graph, where they are.
    fn buffers(&self) -> Vec<Tensor<1>>;
}

/// Makes a stage of a block.
pub(crate) fn stage(block: impl Block, name: &str) -> Box<dyn FlatBlock> {
    Box::new(ModuleStage::new(block, name))
}

/// The role of each float tensor of a module, in the order in which burn visits them.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Of [`FlatBlock::parameters`].
    Parameter(usize),
    /// Of [`FlatBlock::buffers`].
    Buffer(usize),
}

#[derive(Debug)]
struct ModuleStage<B> {
    module: B,
    name: String,
    /// Names without that of the block.
    paths: Vec<String>,
    parameters: Vec<Parameter>,
    /// As the module was made, of each parameter that begins so; until that is forgotten.
    made: Option<Vec<Vec<f32>>>,
    trained: usize,
    buffers: Vec<Buffer>,
    places: Vec<Place>,
    objection: Option<String>,
}

/// One float tensor of a module.
struct Found {
    path: String,
    shape: Vec<usize>,
    values: Vec<f32>,
    is_trained: bool,
}

impl Found {
    fn is_running(&self) -> bool {
        !self.is_trained && self.path.rsplit('.').next().is_some_and(|name| name.starts_with("running_"))
    }
}

impl<B: Block> ModuleStage<B> {
    fn new(module: B, name: &str) -> ModuleStage<B> {
        // Running state is shared by the clones of a module: `valid` makes one of its own, `train` shows the
        // frozen parts.
        let module = module.valid().train();
        let mut survey = Survey::default();
        module.visit(&mut survey);
        // The numbers are the engine's from now on.
        let module = module.map(&mut Hollow);
        let Survey { mut found, objection, .. } = survey;

        let (mut trained, mut frozen, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for (place, found) in found.iter().enumerate() {
            match found.is_running() {
                true => &mut buffers,
                false if found.is_trained => &mut trained,
                false => &mut frozen,
            }
            .push(place);
        }
        let ordered: Vec<usize> = trained.iter().chain(&frozen).copied().collect();
        let mut places = vec![Place::Parameter(0); found.len()];
        for (index, &place) in ordered.iter().enumerate() {
            places[place] = Place::Parameter(index);
        }
        for (index, &place) in buffers.iter().enumerate() {
            places[place] = Place::Buffer(index);
        }
        let parameter = |place: &usize| {
            let Found { path, shape, is_trained, .. } = &found[*place];
            Parameter {
                name: String::new(),
                shape: shape.clone(),
                init: module.init(path, shape),
                decay: if *is_trained { module.decay(path, shape) } else { 0.0 },
                is_trained: *is_trained,
            }
        };
        let buffer = |place: &usize| {
            let Found { shape, values, .. } = &found[*place];
            Buffer { name: String::new(), shape: shape.clone(), initial: values.clone() }
        };
        let in_order = ordered.iter().chain(&buffers);
        let mut stage = ModuleStage {
            name: String::new(),
            paths: in_order.map(|place| found[*place].path.clone()).collect(),
            parameters: ordered.iter().map(parameter).collect(),
            made: None,
            trained: trained.len(),
            buffers: buffers.iter().map(buffer).collect(),
            places,
            objection,
            module,
        };
        let made = stage.parameters.iter().zip(&ordered).map(|(parameter, place)| {
            let values = std::mem::take(&mut found[*place].values);
            if parameter.init.is_none() { values } else { Vec::new() }
        });
        stage.made = Some(made.collect());
        stage.rename(name);
        stage
    }
}

impl<B: Block> FlatBlock for ModuleStage<B> {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    fn summary_len(&self) -> usize {
        self.module.summary_len()
    }

    fn wants_full_input(&self) -> bool {
        self.module.wants_full_input()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.parameters.iter().map(Parameter::len).sum());
        let made = self.made.as_ref().expect("first values are asked for before they are forgotten");
        for (parameter, made) in self.parameters.iter().zip(made) {
            match parameter.initial(seed) {
                Some(initial) => values.extend(initial),
                None => values.extend_from_slice(made),
            }
        }
        values
    }

    fn forget_initial(&mut self) {
        self.made = None;
    }

    fn objection(&self) -> Option<String> {
        self.objection.as_ref().map(|what| format!("block {}: {what}", self.name))
    }

    fn load(&self, parameters: &[Tensor<1>], buffers: &[Tensor<1>], used: Use) -> Box<dyn Loaded> {
        let module = if used == Use::Evaluation { self.module.valid() } else { self.module.clone() };
        let module =
            module.map(&mut Load { places: self.places.iter(), parameters, buffers, stage: self, used });
        let places = if self.buffers.is_empty() { Vec::new() } else { self.places.clone() };
        Box::new(LoadedModule { module, places })
    }

    fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
        let mut names = self.paths.iter().map(|path| format!("{name}.{path}"));
        for (parameter, name) in self.parameters.iter_mut().zip(&mut names) {
            parameter.name = name;
        }
        for (buffer, name) in self.buffers.iter_mut().zip(&mut names) {
            buffer.name = name;
        }
    }

    fn decay(&mut self, share: &dyn Fn(&str, &[usize]) -> f32) {
        for parameter in self.parameters.iter_mut().filter(|parameter| parameter.is_trained) {
            parameter.decay = share(&parameter.name, &parameter.shape);
        }
    }

    fn freeze(&mut self, is_frozen: &dyn Fn(&str) -> bool) {
        for parameter in self.parameters.iter_mut().filter(|parameter| is_frozen(&parameter.name)) {
            (parameter.is_trained, parameter.decay) = (false, 0.0);
        }
        let of_module = self.places.iter().filter_map(|place| match place {
            Place::Parameter(index) => Some(*index),
            Place::Buffer(_) => None,
        });
        let (trained, frozen): (Vec<usize>, Vec<usize>) =
            of_module.partition(|index| self.parameters[*index].is_trained);
        self.trained = trained.len();
        let order = [trained, frozen].concat();
        let mut new_places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, &old)| new_places[old] = new);
        for place in &mut self.places {
            if let Place::Parameter(index) = place {
                *index = new_places[*index];
            }
        }
        reorder(&mut self.parameters, &order);
        reorder(&mut self.paths, &order);
        if let Some(made) = &mut self.made {
            reorder(made, &order);
        }
    }
}

/// Brings the first values into an order: of each place, the former place of its value.
fn reorder<T>(values: &mut Vec<T>, order: &[usize]) {
    let others = values.split_off(order.len());
    let mut before: Vec<Option<T>> = std::mem::take(values).into_iter().map(Some).collect();
    values.extend(order.iter().map(|&old| before[old].take().expect("each place is in the order once")));
    values.extend(others);
}

#[derive(Debug)]
struct LoadedModule<B> {
    module: B,
    /// None without buffers.
    places: Vec<Place>,
}

impl<B: Block> Loaded for LoadedModule<B> {
    fn forward(&self, input: Vec<Part>, pass: &mut Pass) -> Vec<Part> {
        parts_of(self.module.forward(from_parts(input), pass))
    }

    fn summarise(&self, input: Vec<Part>) -> Tensor<1> {
        let summary = self.module.summarise(&from_parts(input));
        summary.expect("a block with a length of its summary summarises")
    }

    fn take_gradient(&self, found: Option<&mut Gradients>, into: &mut Vec<f32>) {
        self.module.visit(&mut TakeGradient { found, into });
    }

    fn take_gradient_there(&self, found: Option<&mut Gradients>, into: &mut Vec<Tensor<1>>) {
        self.module.visit(&mut TakeGradientThere { found, into });
    }

    fn buffers(&self) -> Vec<Tensor<1>> {
        if self.places.is_empty() {
            return Vec::new();
        }
        let mut read = ReadBuffers { places: self.places.iter(), values: Vec::new() };
        // A running state shows its last update only when it is asked to take stock, which `valid` does.
        self.module.valid().visit(&mut read);
        read.values
    }
}

/// Lists a module's float tensors.
#[derive(Default)]
struct Survey {
    /// Names of the modules on the way, and their containers'.
    path: Vec<(String, String)>,
    found: Vec<Found>,
    objection: Option<String>,
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Which variant of an enum a module is, is nothing that a name needs.
        let fields = self.path.iter().filter(|(_, container)| !container.starts_with("Enum:"));
        let names: Vec<&str> = fields.map(|(name, _)| name.as_str()).collect();
        let tensor = param.val();
        self.found.push(Found {
            path: names.join("."),
            shape: tensor.dims().to_vec(),
            is_trained: tensor.is_require_grad(),
            values: to_numbers(tensor),
        });
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        if flag.is_enabled() && self.path.last().is_some_and(|(_, container)| container == "Struct:Dropout") {
            self.objection = Some(
                "burn's Dropout draws from the random numbers of the process; use shardd_trainer::nn::Dropout"
                    .to_owned(),
            );
        }
    }
}

/// Leaves a module the shapes of its tensors, all of one number.
struct Hollow;

impl ModuleMapper for Hollow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let is_trained = tensor.is_require_grad();
        let (dims, device) = (tensor.dims(), tensor.device().inner());
        drop(tensor);
        let hollow = Tensor::<D>::zeros([1; D], &device).expand(dims).autodiff();
        Param::from_mapped_value(id, if is_trained { hollow.require_grad() } else { hollow }, mapper)
    }
}

/// Puts numbers into a module.
struct Load<'a, B> {
    places: std::slice::Iter<'a, Place>,
    parameters: &'a [Tensor<1>],
    buffers: &'a [Tensor<1>],
    stage: &'a ModuleStage<B>,
    used: Use,
}

impl<B: Block> ModuleMapper for Load<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = *self.places.next().expect("a module is visited as often as it is mapped");
        let (id, old, mapper) = param.consume();
        let dims = old.dims();
        let tensor = match place {
            Place::Parameter(index) => {
                let tensor = self.parameters[index].clone().reshape(dims);
                match self.used {
                    Use::Evaluation => tensor,
                    Use::Training if index < self.stage.trained => tensor.autodiff().require_grad(),
                    Use::Forward | Use::Training => tensor.autodiff(),
                }
            }
            Place::Buffer(index) => {
                let tensor = self.buffers[index].clone().reshape(dims);
                if self.used == Use::Evaluation { tensor } else { tensor.autodiff() }
            }
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}

struct TakeGradient<'a> {
    found: Option<&'a mut Gradients>,
    into: &'a mut Vec<f32>,
}

impl ModuleVisitor for TakeGradient<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.base();
        if !tensor.is_require_grad() {
            return;
        }
        match self.found.as_mut().and_then(|found| tensor.grad_remove(found)) {
            Some(gradient) => {
                let gradient = gradient.cast(FloatDType::F32).into_data();
                self.into.extend_from_slice(gradient.as_slice().expect("just cast to it"));
            }
            None => self.into.resize(self.into.len() + tensor.dims().iter().product::<usize>(), 0.0),
        }
    }
}

struct TakeGradientThere<'a> {
    found: Option<&'a mut Gradients>,
    into: &'a mut Vec<Tensor<1>>,
}

impl ModuleVisitor for TakeGradientThere<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.base();
        if !tensor.is_require_grad() {
            return;
        }
        let count = [tensor.dims().iter().product::<usize>()];
        let gradient = self.found.as_mut().and_then(|found| tensor.grad_remove(found));
        self.into.push(match gradient {
            Some(gradient) => gradient.cast(FloatDType::F32).reshape(count),
            None => Tensor::zeros(count, &tensor.device().inner()),
        });
    }
}

struct ReadBuffers<'a> {
    places: std::slice::Iter<'a, Place>,
    values: Vec<Tensor<1>>,
}

impl ModuleVisitor for ReadBuffers<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let place = self.places.next().expect("a module is visited as often as it is mapped");
        if let Place::Buffer(_) = place {
            let tensor = param.base().inner().cast(FloatDType::F32);
            let count = [tensor.dims().iter().product::<usize>()];
            self.values.push(tensor.reshape(count));
        }
    }
}

/// A flat tensor of 32 bits with these values, on a device.
pub(crate) fn from_numbers(numbers: Vec<f32>, device: &Device) -> Tensor<1> {
    let count = [numbers.len()];
    Tensor::from_data(TensorData::new(numbers, count), (device, DType::F32))
}

/// A tensor's values on the host.
pub(crate) fn to_numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.inner().cast(FloatDType::F32).into_data().try_into_vec_as().expect("just cast to it")
}

#[cfg(test)]
mod tests;
