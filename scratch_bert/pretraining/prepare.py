"""Examples of text that is too much for one process, on datatrove, which divides files among tasks on this machine or a cluster."""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.executor.base import PipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import CSVReader, JsonlReader, ParquetReader, WarcReader
from datatrove.pipeline.readers.base import BaseDiskReader

from ..storage import write_json
from ..tokenizer import load_tokenizer
from .arguments import PreparationArguments, PreparationDataArguments
from .corpus import TokenizedCorpus
from .dataset import SentencePairDataset
from .pairs import OBJECTIVES
from .prepared import PREPARED, prepared_columns
from .text import TextSource


logger = logging.getLogger("scratch_bert")

READERS = {"jsonl": JsonlReader, "parquet": ParquetReader, "csv": CSVReader, "warc": WarcReader}
EXECUTORS = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}
SENTENCES_IN_A_BLOCK = 1 << 16  # pairs are drawn within a block, which is held in memory


class WriteExamples(PipelineStep):
    """Writes the examples of each file of the `reader` to a parquet file of its name, in `output_dir`, whose tokenizer it uses.

    The examples of a file follow from its content, its name, the seed and the options alone, not from the number of tasks. A
    parquet file that is there is whole: a task that is started again goes on with the next. Raises `ValueError` for a file that
    gives no examples.
    """

    type, name = "scratch_bert", "examples"

    def __init__(
        self,
        reader: BaseDiskReader,
        output_dir: Path,
        split: str,
        args: PreparationDataArguments,
        seed: int,
        extractors: Iterable[PipelineStep] = (),
    ):
        super().__init__()
        self.reader, self.output_dir, self.split, self.args, self.seed = reader, output_dir, split, args, seed
        self.extractors = list(extractors)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator:
        self.tokenizer = load_tokenizer(str(self.output_dir))
        for file in files_of(self.reader, rank, world_size):
            parquet = self.output_dir / self.split / f"{file}.parquet"
            if not parquet.exists():
                self._write(file, parquet)
        yield from data or ()

    def _write(self, file: str, parquet: Path) -> None:
        new = parquet.with_name(f".{parquet.name}.new")
        new.parent.mkdir(parents=True, exist_ok=True)
        schema = prepared_columns(self.args.sentence_objective).arrow_schema
        with pq.ParquetWriter(new, schema) as writer:
            for number, documents in enumerate(self._blocks(file)):
                seed = crc32(f"{self.seed} {file} {number}".encode())
                try:
                    dataset = SentencePairDataset(
                        TokenizedCorpus.from_documents(documents, self.tokenizer),
                        self.tokenizer,
                        int(self.args.max_seq_length),
                        self.args.short_seq_prob,
                        seed,
                        self.args.sentence_objective,
                        single_segment_prob=self.args.single_segment_prob,
                    )
                except ValueError as error:
                    raise ValueError(f"{file}: {error}") from None
                examples = [dataset[i] for i in np.random.default_rng(seed).permutation(len(dataset))]
                columns = {name: [example[name] for example in examples] for name in schema.names}
                writer.write_table(pa.table(columns, schema))
                self.stat_update("examples", value=len(examples), unit="block")
                self.stat_update("tokens", value=dataset.corpus.num_tokens, unit="block")
        os.replace(new, parquet)

    def _blocks(self, file: str) -> Iterator[list[list[str]]]:
        """The documents of a file, each as its sentences, in blocks of as many as a pair may need, or more."""
        least = OBJECTIVES[self.args.sentence_objective].min_documents
        before, block, sentences = [], [], 0
        for document in self._documents(file):
            block.append(document)
            sentences += len(document)
            if sentences >= SENTENCES_IN_A_BLOCK and len(block) >= least:
                if before:
                    yield before
                before, block, sentences = block, [], 0
        if before and len(block) >= least:
            yield before
            before = []
        yield before + block

    def _documents(self, file: str) -> Iterator[list[str]]:
        records = self.reader.read_file(file)
        for extractor in self.extractors:
            records = extractor.run(records)
        args = self.args
        source = TextSource([], args.text_format, splitter=args.sentence_splitter, language=args.language or "en")
        for record in records:
            yield from source.with_shards([[record.text]]).documents()


def files_of(reader: BaseDiskReader, rank: int = 0, world_size: int = 1) -> list[str]:
    """The files of a task, by their names in the reader's directory."""
    return reader.data_folder.get_shard(rank, world_size, recursive=reader.recursive, glob_pattern=reader.glob_pattern)


def build_executor(data_args: PreparationDataArguments, args: PreparationArguments) -> PipelineExecutor:
    """What runs the tasks, when its `run` is called. Writes the tokenizer, and what the examples are made with, into the output
    directory, or checks that they are the same there.

    Raises `ValueError` or `OSError` if there are no files, and if the directory holds other examples or anything else.
    """
    output_dir = Path(args.output_dir).absolute()
    reader = READERS[args.input_format](args.input_dir, glob_pattern=args.glob_pattern, text_key=data_args.text_column)
    files = files_of(reader)
    if not files:
        raise FileNotFoundError(f"There are no files {args.glob_pattern or ''} in {args.input_dir}.")
    tokenizer = load_tokenizer(data_args.tokenizer_name_or_path)
    options = {name: getattr(data_args, name) for name in data_args.USED if name != "tokenizer_name_or_path"}
    options |= {"seed": args.seed, "vocabulary": crc32(repr(sorted(tokenizer.get_vocab().items())).encode())}
    options["files"] = {args.split: len(files)}
    about = output_dir / PREPARED
    if about.is_file():
        before = json.loads(about.read_text(encoding="utf-8"))
        for name, value in options.items():
            if name != "files" and before.get(name) != value:
                raise ValueError(
                    f"{output_dir} holds examples with another {name}: {before.get(name)}, not {value}. Choose another "
                    "--output_dir, or the options that they were made with."
                )
        options["files"] = before["files"] | options["files"]
    elif output_dir.exists() and any(output_dir.iterdir()):
        raise ValueError(f"The output directory {output_dir} is not empty. Choose another one.")
    tokenizer.model_max_length = int(data_args.max_seq_length)
    tokenizer.save_pretrained(output_dir)
    write_json(about, options)

    extractors = [Trafilatura()] if args.input_format == "warc" else []
    step = WriteExamples(reader, output_dir, args.split, data_args, args.seed, extractors)
    logs = output_dir / "logs" / args.split
    if len(list((output_dir / args.split).rglob("*.parquet"))) < len(files):
        shutil.rmtree(logs / "completions", ignore_errors=True)  # the files say what is done, for any number of tasks
    tasks = min(args.tasks, len(files))
    logger.info(f"{len(files):,} files in {tasks:,} tasks; logs are in {logs}")
    options = {"tasks": tasks, "workers": args.workers, "logging_dir": str(logs)} | args.executor_options
    if args.executor == "slurm":
        options = {"job_name": "prepare_data"} | options
    try:
        return EXECUTORS[args.executor]([step], **options)
    except TypeError as error:  # a missing or unknown option
        raise ValueError(f"executor_options do not fit {args.executor}: {error}.") from None
