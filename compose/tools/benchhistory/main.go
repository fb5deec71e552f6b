// Command benchhistory adds what a bench has measured to a history, and draws the history.
//
//	benchhistory [-add SAMPLES.json] [-chart CHART.svg] HISTORY.jsonl
//
// SAMPLES is a file that "make bench" writes for TestBenchAgents. A line of the history is the medians of one run. The
// chart shows, run by run, the ratios of the second contender to the first.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	add := flag.String("add", "", "the samples of a run to add; empty adds none")
	chart := flag.String("chart", "", "the picture to write; empty writes none")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: benchhistory [flags] HISTORY.jsonl")
		flag.PrintDefaults()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *add, *chart); err != nil {
		fmt.Fprintln(os.Stderr, "benchhistory:", err)
		os.Exit(1)
	}
}

func run(history, add, chart string) error {
	if add != "" {
		if err := addRun(history, add); err != nil {
			return err
		}
	}
	if chart == "" {
		return nil
	}
	runs, err := readHistory(history)
	if err != nil {
		return err
	}
	picture, err := draw(runs)
	if err != nil {
		return fmt.Errorf("draw %s: %w", history, err)
	}
	return os.WriteFile(chart, picture, 0o644)
}
