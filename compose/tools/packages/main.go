// Command packages makes a deb and an rpm of an installed tree:
// "packages -tree TREE -scripts deploy/packages -arch amd64 -version v0.1.0 -out DIR".
//
// TREE is what scripts/install wrote. The date of all files is SOURCE_DATE_EPOCH, in seconds. The same tree, version
// and date give the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	var in input
	flag.StringVar(&in.tree, "tree", "", "folder of the installed files")
	flag.StringVar(&in.scripts, "scripts", "", "folder of postinst, prerm and postrm")
	flag.StringVar(&in.arch, "arch", "", "architecture of the binary as Go names it: amd64 or arm64")
	flag.StringVar(&in.version, "version", "", "version as git describe has it")
	flag.StringVar(&in.out, "out", "", "existing folder to write to")
	flag.Parse()
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		err = fmt.Errorf("SOURCE_DATE_EPOCH: give seconds since 1970: %w", err)
	} else {
		in.date = time.Unix(seconds, 0).UTC()
		err = write(in)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}
