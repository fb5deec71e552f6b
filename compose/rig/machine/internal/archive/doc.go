// Package archive fetches packages of a release of Debian, whatever this machine runs.
//
// Input: the release and a folder to work in. Output: the packages' files, whose signatures apt has verified. The lists
// of packages are the folder's own, so that this machine's apt does not come to know another release.
package archive
