"""Examples of more text than one process can read: datatrove divides files among tasks here or on a cluster."""

import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import uuid4

import loguru
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.executor.base import PipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import WarcReader
from datatrove.pipeline.readers.base import BaseDiskReader
from fsspec.utils import infer_compression

from scratch_bert.atomic import LOCK, move_into_place, write_json
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.corpus.tokenizer import gives_same_input, load_tokenizer
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.examples.prepared import ABOUT, describe_tokenizer, parquet_file
from scratch_bert.logs import logger
from scratch_bert.objectives import find_objective
from scratch_bert.repository import read_json
from scratch_bert.text.files import TextError
from scratch_bert.text.formats import TextSource
from scratch_bert.text.tables import read_chunks
from scratch_bert_options.errors import explain_limit, is_lack_of_space
from scratch_bert_options.preparation import PreparationDataOptions, PreparationOptions


EXECUTORS = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}
SENTENCES_IN_A_BLOCK = 1 << 16  # pairs are drawn within a block, which is held in memory
SOURCE_SIZE = b"source_size"  # in the metadata of parquet files: bytes of the file of text


class TableReader(BaseDiskReader):
    """The texts of tables of a `kind`, CSV, JSON Lines or Parquet, as all commands read them: see `read_chunks`."""

    name = "tables"

    def __init__(self, *args, kind: str, **kwargs):
        super().__init__(*args, **kwargs)
        self.kind = f".{kind}"

    def read_file(self, filepath: str) -> Iterator[Document]:
        file = Path(self.data_folder.path, filepath)
        with tempfile.TemporaryDirectory() as scratch:
            if not self.data_folder.is_local() or infer_compression(filepath) not in (None, "gzip"):
                file = Path(scratch, file.stem)
                with self.data_folder.open(filepath, "rb", compression="infer") as source, file.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
            rows = chain.from_iterable(read_chunks(file, self.kind, [self.text_key], skips=True))
            for number, row in zip(count(1), rows):
                if not isinstance(text := row.get(self.text_key) or "", str):
                    raise TextError(f"record {number:,} has {text!r:.60} in {self.text_key!r}, which is not text")
                if text:
                    yield Document(text, f"{filepath}/{number}")


class WriteExamples(PipelineStep):
    """Writes the examples of each file of the `reader` to a parquet file of its name, with `output_dir`'s tokenizer.

    The examples of a file follow from its content, its name, the seed and the options, not from the number of tasks.
    Existing parquet files are complete: a restarted task continues with the next. Raises `ValueError` at its end if
    files gave no examples.
    """

    type, name = "scratch_bert", "examples"

    def __init__(
        self,
        reader: BaseDiskReader,
        output_dir: Path,
        split: str,
        args: PreparationDataOptions,
        seed: int,
        extractors: Iterable[PipelineStep] = (),
    ):
        super().__init__()
        self.reader, self.output_dir, self.split, self.args, self.seed = reader, output_dir, split, args, seed
        self.extractors = list(extractors)
        self.objective = find_objective(args.sentence_objective)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator:
        self.tokenizer = load_tokenizer(str(self.output_dir))
        errors = []
        for file in files_of(self.reader, rank, world_size):
            parquet = parquet_file(self.output_dir, self.split, file)
            size = str(self.reader.data_folder.size(file)).encode()
            if parquet.exists():
                if (pq.read_schema(parquet).metadata or {}).get(SOURCE_SIZE, size) != size:
                    errors.append(f"{file} has changed since its examples were made: delete {parquet}")
            else:
                try:
                    self._write(file, parquet, size)
                except Exception as error:  # of any reader: other files' examples are kept
                    if is_lack_of_space(error) or explain_limit(error):
                        raise
                    errors.append(f"{file}: {error or type(error).__name__}")
        if errors:
            raise ValueError(f"{len(errors):,} files without examples: {'; '.join(errors[:5])}")
        yield from data or ()

    def _write(self, file: str, parquet: Path, size: bytes) -> None:
        parquet.parent.mkdir(parents=True, exist_ok=True)
        new = parquet.with_name(f".{parquet.name}.{uuid4().hex}.new")  # two tasks may write the same file
        schema = self.objective.features().arrow_schema
        schema = schema.with_metadata({**(schema.metadata or {}), SOURCE_SIZE: size})
        single_segment_prob = self.args.single_segment_prob if self.split == "train" else 0.0
        try:
            with pq.ParquetWriter(new, schema) as writer:
                for number, documents in enumerate(self._blocks(file)):
                    seed = zlib.crc32(f"{self.seed} {file} {number}".encode())
                    dataset = SentencePairDataset(
                        TokenizedCorpus.from_documents(documents, self.tokenizer),
                        self.tokenizer,
                        self.args.max_seq_length,
                        self.args.short_seq_prob,
                        seed,
                        self.objective,
                        single_segment_prob=single_segment_prob,
                    )
                    examples = [dataset[i] for i in np.random.default_rng(seed).permutation(len(dataset))]
                    columns = {name: [example[name] for example in examples] for name in schema.names}
                    writer.write_table(pa.table(columns, schema))
                    self.stat_update("examples", value=len(examples), unit="block")
                    self.stat_update("tokens", value=dataset.corpus.num_tokens, unit="block")
            move_into_place(new, parquet)
        finally:
            new.unlink(missing_ok=True)

    def _blocks(self, file: str) -> Iterator[list[list[str]]]:
        """The documents of a file, each as its sentences, in blocks of at least as many as pairs need; the remainder
        joins the last block."""
        before, block, sentences = [], [], 0
        for document in self._documents(file):
            block.append(document)
            sentences += len(document)
            if sentences >= SENTENCES_IN_A_BLOCK and len(block) >= self.objective.min_documents:
                if before:
                    yield before
                before, block, sentences = block, [], 0
        if not before + block:
            raise ValueError(f"no record has text in the field {self.reader.text_key!r}, which text_column names")
        yield before + block

    def _documents(self, file: str) -> Iterator[list[str]]:
        records = self.reader.read_file(file)
        for extractor in self.extractors:
            records = extractor.run(records)
        args = self.args
        source = TextSource([], args.text_format, splitter=args.sentence_splitter, language=args.language or "en")
        for record in records:
            yield from replace(source, shards=[[record.text]]).documents()


def files_of(reader: BaseDiskReader, rank: int = 0, world_size: int = 1) -> list[str]:
    """Names of a task's files in the reader's directory."""
    return reader.data_folder.get_shard(rank, world_size, recursive=reader.recursive, glob_pattern=reader.glob_pattern)


def build_executor(data_args: PreparationDataOptions, args: PreparationOptions) -> PipelineExecutor:
    """The executor, whose `run` runs the tasks. Writes the options and the tokenizer to the output directory.

    Raises `ValueError` or `OSError` if there are no files, for options that the executor does not accept, and if the
    directory holds examples of other text or with other options, or anything else.
    """
    loguru.logger.configure(patcher=lambda record: record.update(exception=None))  # errors without their tracebacks
    output_dir = Path(args.output_dir).absolute()
    pages, where = args.input_format == "warc", {"glob_pattern": args.glob_pattern, "text_key": data_args.text_column}
    reader = (WarcReader if pages else partial(TableReader, kind=args.input_format))(args.input_dir, **where)
    files = files_of(reader)
    if not files:
        raise FileNotFoundError(f"There are no files {args.glob_pattern or '*'} in {args.input_dir}.")
    inside = Path(args.output_dir).resolve().is_relative_to(Path(args.input_dir).resolve())
    if reader.data_folder.is_local() and inside and not args.glob_pattern:
        raise ValueError("output_dir is in input_dir, and would be read as text: choose another place.")
    find_objective(data_args.sentence_objective).check_length(data_args.max_seq_length)
    tokenizer = load_tokenizer(data_args.tokenizer_name_or_path)
    tokenizer.model_max_length = data_args.max_seq_length
    # The length is text, as in the directories of earlier versions.
    options = asdict(data_args) | {"max_seq_length": str(data_args.max_seq_length), "seed": args.seed}
    del options["tokenizer_name_or_path"]
    source = {"input_dir": str(reader.data_folder.path), "input_format": args.input_format}

    # What the directory holds already: examples of the same kind alone.
    before = read_json(output_dir / ABOUT) if (output_dir / ABOUT).is_file() else {}
    if not before and any(path.name not in (LOCK, f".{ABOUT}") for path in output_dir.iterdir()):
        raise ValueError(f"The output directory {output_dir} is not empty. Choose another one.")
    splits = {
        name: made for name, made in before.get("splits", {}).items() if any((output_dir / name).rglob("*.parquet"))
    }
    if splits:
        for name, value in (options | (source if args.split in splits else {})).items():
            old = (before | splits.get(args.split, {})).get(name)
            if old != value:
                raise ValueError(f"{output_dir} holds examples with a different {name}: {old}, not {value}.")
        if not gives_same_input(tokenizer, load_tokenizer(str(output_dir))):
            raise ValueError(f"{output_dir} holds examples of another tokenizer.")

    extractors = [Trafilatura(timeout=60)] if pages else []
    step = WriteExamples(reader, output_dir, args.split, data_args, args.seed, extractors)
    tasks, logs = min(args.tasks, len(files)), output_dir / "logs" / args.split
    executor_options = {"tasks": tasks, "logging_dir": str(logs), "workers": args.workers}
    executor_options["skip_completed"] = False  # parquet files show what is done
    if args.executor == "slurm":
        executor_options["job_name"] = "prepare_data"
    try:
        executor = EXECUTORS[args.executor]([step], **executor_options | (args.executor_options or {}))
    except TypeError as error:  # a missing or unknown option
        raise ValueError(f"executor_options do not fit {args.executor}: {error}.") from None

    splits[args.split] = source | {"files": sorted(files)}
    write_json(output_dir / ABOUT, options | {"splits": splits, "vocabulary": describe_tokenizer(tokenizer)})
    tokenizer.save_pretrained(output_dir)
    logger.info(f"{len(files):,} files in {tasks:,} tasks; logs are in {logs}")
    return executor
