// Command metricsdoc writes docs/metrics.md: the table of all metrics that the services' sources define.
//
//	metricsdoc [-check] SERVICES FILE
//
// SERVICES is the folder of the services. With -check it changes nothing, and fails if FILE is not current.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	check := flag.Bool("check", false, "only say whether the file is current")
	flag.Parse()
	if err := run(*check, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
}

func run(check bool, args []string) error {
	if len(args) != 2 {
		return errors.New("give the folder of the services and the file to write")
	}
	found, err := find(args[0])
	if err != nil {
		return err
	}
	page := render(found)
	if !check {
		return os.WriteFile(args[1], page, 0o644)
	}
	old, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	if !bytes.Equal(old, page) {
		return fmt.Errorf("%s is not what the sources define: run make generate", args[1])
	}
	return nil
}
