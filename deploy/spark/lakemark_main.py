"""What spark-submit is given as its application: the command `lakemark` with its arguments."""

from lakemark.cli import main

if __name__ == "__main__":
    main()
