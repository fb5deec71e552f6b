package dns

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxResolvConf is the size that a resolv.conf may have; a larger one is no resolv.conf.
const maxResolvConf = 10 << 20

// resolvConf is what a resolv.conf says, in the order in which it says it.
type resolvConf struct {
	servers, searches, options []string
}

// readResolvConf reads the node's resolv.conf; the path "" is one that says nothing.
func readResolvConf(path string) (resolvConf, error) {
	if path == "" {
		return resolvConf{}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return resolvConf{}, fmt.Errorf("resolvConf: %w", err)
	}
	defer f.Close()
	conf, err := parseResolvConf(f)
	if err != nil {
		return resolvConf{}, fmt.Errorf("resolvConf: %s: %w", path, err)
	}
	return conf, nil
}

// parseResolvConf reads nameserver lines (they add up), search lines (the last one wins)
// and options lines (the last value of each option wins). A domain is the same with and
// without its trailing dot, and the root domain alone says nothing.
func parseResolvConf(r io.Reader) (resolvConf, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxResolvConf+1))
	if err != nil {
		return resolvConf{}, err
	}
	if len(text) > maxResolvConf {
		return resolvConf{}, fmt.Errorf("longer than %d bytes", maxResolvConf)
	}
	conf := resolvConf{servers: []string{}, searches: []string{}, options: []string{}}
	var problems []error
	for number, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		switch words[0] {
		case "nameserver":
			if len(words) < 2 {
				problems = append(problems, fmt.Errorf("line %d: nameserver without an address", number+1))
				continue
			}
			conf.servers = append(conf.servers, words[1])
		case "search":
			conf.searches = []string{}
			for _, domain := range words[1:] {
				if domain != "." {
					conf.searches = append(conf.searches, strings.TrimSuffix(domain, "."))
				}
			}
		case "options":
			for _, option := range words[1:] {
				conf.options = setOption(conf.options, option)
			}
		}
	}
	return conf, errors.Join(problems...)
}

// setOption adds an option, or replaces the one of the same name where it stands.
func setOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i := range options {
		if known, _, _ := strings.Cut(options[i], ":"); known == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}
