//! Counts the fields of a request while it arrives, before it is decoded.
//!
//! A field costs the decoder, the checks and the actor about the same whether it is empty or has a kilobyte,
//! so a bound on bytes does not bound the time that a request takes on the server's only thread. The
//! counter knows from the descriptors which fields are messages and looks into those, and only into
//! those. What it cannot read the decoder refuses.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::grpc::pb;
use crate::grpc::pb::process_service_server::SERVICE_NAME;

/// Messages within messages that are looked into: as many as the decoder takes.
const MAX_DEPTH: usize = 100;

/// Bits of a varint at most.
const VARINT_BITS: u32 = 64;

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    // The reflection service reads the same bytes when the server starts.
    let files = FileDescriptorSet::decode(pb::FILE_DESCRIPTORS).unwrap_or_default();
    Schema::new(&files)
});

/// What the counter knows of all messages.
#[derive(Debug, Default)]
struct Schema {
    /// The fields of each message, by their numbers.
    messages: Vec<Vec<Kind>>,
    /// The request of each method, by its name.
    requests: HashMap<String, usize>,
}

/// What a length-delimited field holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// One value, or the field is not known.
    #[default]
    Value,
    /// A message, by its index.
    Message(usize),
    /// Numbers, of which each has a byte at least.
    Packed,
}

impl Schema {
    fn new(files: &FileDescriptorSet) -> Schema {
        let mut found = Vec::new();
        for file in &files.file {
            find_messages(&format!(".{}", file.package()), &file.message_type, &mut found);
        }
        let indices: HashMap<&str, usize> =
            found.iter().enumerate().map(|(index, (name, _))| (name.as_str(), index)).collect();
        let messages = found.iter().map(|(_, message)| fields(message, &indices)).collect();
        let services = files.file.iter().flat_map(|file| {
            file.service
                .iter()
                .filter(|service| format!("{}.{}", file.package(), service.name()) == SERVICE_NAME)
        });
        let methods = services.flat_map(|service| &service.method);
        let requests = methods.filter_map(|method| {
            Some((method.name().to_owned(), *indices.get(method.input_type())?))
        });
        Schema { requests: requests.collect(), messages }
    }

    fn kind(&self, message: usize, number: u64) -> Kind {
        let fields = self.messages.get(message).map_or(&[][..], Vec::as_slice);
        usize::try_from(number)
            .ok()
            .and_then(|number| fields.get(number).copied())
            .unwrap_or_default()
    }
}

/// Finds messages with their full names, nested ones too.
fn find_messages<'a>(
    scope: &str,
    messages: &'a [DescriptorProto],
    found: &mut Vec<(String, &'a DescriptorProto)>,
) {
    for message in messages {
        let name = format!("{scope}.{}", message.name());
        find_messages(&name, &message.nested_type, found);
        found.push((name, message));
    }
}

fn fields(message: &DescriptorProto, indices: &HashMap<&str, usize>) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for field in &message.field {
        let kind = kind(field, indices);
        if let (true, Ok(number)) = (kind != Kind::Value, usize::try_from(field.number())) {
            kinds.resize(kinds.len().max(number + 1), Kind::Value);
            kinds[number] = kind;
        }
    }
    kinds
}

fn kind(field: &FieldDescriptorProto, indices: &HashMap<&str, usize>) -> Kind {
    match field.r#type() {
        Type::Message => {
            indices.get(field.type_name()).map_or(Kind::Value, |at| Kind::Message(*at))
        }
        Type::String | Type::Bytes | Type::Group => Kind::Value,
        _ if field.label() == Label::Repeated => Kind::Packed,
        _ => Kind::Value,
    }
}

/// The type of a method's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestType(usize);

impl RequestType {
    /// The request of a method of the process service.
    pub(super) fn of_method(name: &str) -> Option<RequestType> {
        SCHEMA.requests.get(name).copied().map(RequestType)
    }
}

/// A message has more fields than it may have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyFields;

/// Counts the fields of one message, of which bytes come in pieces of any size.
#[derive(Debug)]
pub(super) struct FieldCounter {
    /// Fields that may still come.
    left: usize,
    /// Bytes that have come.
    position: u64,
    /// The messages that the next byte is in, outermost first.
    levels: Vec<Level>,
    step: Step,
    varint: Varint,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    message: usize,
    /// Where it ends.
    end: u64,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Step {
    Tag,
    /// A number, which does not matter.
    Number,
    /// The length of what a field holds.
    Length(Kind),
    /// What a field holds, up to a position.
    Skip(u64),
    /// Nothing that can be read: the decoder refuses it.
    Unreadable,
}

#[derive(Debug, Default)]
struct Varint {
    value: u64,
    bits: u32,
}

impl Varint {
    /// The number, when this is its last byte.
    fn add(&mut self, byte: u8) -> Option<u64> {
        if self.bits < VARINT_BITS {
            self.value |= u64::from(byte & 0x7f) << self.bits;
            self.bits += 7;
        }
        (byte < 0x80).then(|| std::mem::take(self).value)
    }
}

impl FieldCounter {
    /// Counts up to a number of fields.
    pub(super) fn new(RequestType(message): RequestType, max_fields: usize) -> FieldCounter {
        let levels = vec![Level { message, end: u64::MAX }];
        FieldCounter {
            left: max_fields,
            position: 0,
            levels,
            step: Step::Tag,
            varint: Varint::default(),
        }
    }

    /// Takes the next bytes of the message.
    pub(super) fn receive(&mut self, mut data: &[u8]) -> Result<(), TooManyFields> {
        while let Some((byte, rest)) = data.split_first() {
            if let Step::Skip(end) = self.step {
                let skipped =
                    usize::try_from(end - self.position).unwrap_or(usize::MAX).min(data.len());
                data = &data[skipped..];
                self.position += skipped as u64;
                if self.position == end {
                    self.end_field();
                }
                continue;
            }
            if matches!(self.step, Step::Unreadable) {
                return Ok(());
            }
            data = rest;
            self.position += 1;
            if let Some(number) = self.varint.add(*byte) {
                self.take_number(number)?;
            }
        }
        Ok(())
    }

    fn take_number(&mut self, number: u64) -> Result<(), TooManyFields> {
        match self.step {
            Step::Tag => {
                self.count(1)?;
                let message = self.levels.last().map_or(usize::MAX, |level| level.message);
                match number & 7 {
                    // No field has the number 0.
                    _ if number < 8 => self.step = Step::Unreadable,
                    0 => self.step = Step::Number,
                    1 => self.skip(8),
                    2 => self.step = Step::Length(SCHEMA.kind(message, number >> 3)),
                    5 => self.skip(4),
                    // The begin or end of a group, which the decoder skips with all that is in it.
                    3 | 4 => self.end_field(),
                    _ => self.step = Step::Unreadable,
                }
            }
            Step::Length(Kind::Message(message)) if self.levels.len() < MAX_DEPTH => {
                let end = self.position.saturating_add(number);
                self.levels.push(Level { message, end });
                self.end_field();
            }
            Step::Length(kind) => {
                if kind == Kind::Packed {
                    self.count(number)?;
                }
                self.skip(number);
            }
            Step::Number | Step::Skip(_) | Step::Unreadable => self.end_field(),
        }
        Ok(())
    }

    fn count(&mut self, fields: u64) -> Result<(), TooManyFields> {
        let fields = usize::try_from(fields).unwrap_or(usize::MAX);
        self.left = self.left.checked_sub(fields).ok_or(TooManyFields)?;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) {
        self.step = Step::Skip(self.position.saturating_add(bytes));
        if bytes == 0 {
            self.end_field();
        }
    }

    /// A field has ended, and with it maybe the message that it is in.
    fn end_field(&mut self) {
        self.step = Step::Tag;
        while self.levels.len() > 1
            && self.levels.last().is_some_and(|level| level.end <= self.position)
        {
            self.levels.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: usize, variables: usize) -> Vec<u8> {
        let args = vec![String::new(); args];
        let program = pb::spec::Program::Argv(pb::Argv { args, ..Default::default() });
        let set = (0..variables).map(|n| (n.to_string(), "value".into())).collect();
        let env = pb::Environment { set, ..Default::default() };
        let groups = vec![1; 7];
        let spec = pb::Spec {
            program: Some(program),
            env: Some(env),
            user: Some(pb::User { groups, ..Default::default() }),
            cwd: "/".repeat(9),
            ..Default::default()
        };
        pb::StartRequest { id: "a".into(), spec: Some(spec), ..Default::default() }.encode_to_vec()
    }

    /// Whether a message has at most so many fields, if it comes in pieces of so many bytes.
    fn has_at_most(message: &[u8], fields: usize, piece: usize) -> bool {
        let request = RequestType::of_method("Start").unwrap();
        let mut counter = FieldCounter::new(request, fields);
        message.chunks(piece).all(|piece| counter.receive(piece).is_ok())
    }

    #[test]
    fn every_field_of_every_message_counts() {
        let message = request(5, 3);
        // id, spec, argv, 5 arguments, env, 3 entries with key and value, cwd, user, groups, 7 groups.
        let fields = 1 + 1 + 1 + 5 + 1 + 3 * 3 + 1 + 1 + 1 + 7;
        for piece in 1..=message.len() {
            assert!(has_at_most(&message, fields, piece), "{piece}");
            assert!(!has_at_most(&message, fields - 1, piece), "{piece}");
        }
    }

    #[test]
    fn any_bytes_are_counted_without_panic() {
        let message = request(2, 2);
        for at in 0..message.len() {
            for byte in [0, 3, 4, 6, 7, 0x0b, 0x7f, 0x80, 0xff] {
                let mut broken = message.clone();
                broken[at] = byte;
                for piece in [1, 3, broken.len()] {
                    has_at_most(&broken, 1000, piece);
                }
            }
        }
        assert!(has_at_most(&[0xff; 64], 1000, 7));
    }

    #[test]
    fn every_call_has_a_request_type() {
        for call in crate::access::Call::ALL {
            assert!(RequestType::of_method(call.name).is_some(), "{}", call.name);
        }
    }
}
